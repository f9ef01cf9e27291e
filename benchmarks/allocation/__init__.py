"""Rules of scheduling on the papers' workloads: `python -m benchmarks.allocation [PART ...] [--full]`.

The parts are `privatekube`, `dpack` and `speed`, without a name all of them (about four minutes; `--full` hours). Plans
arrive at blocks of data, which are populations here, and `app.ledger` decides: its rules, filters and admission, in
memory. PrivateKube: Luo et al., OSDI 2021. DPack: Tholoniat et al., EuroSys 2025, arXiv 2212.13228.
"""
