"""Rényi divergences as pure formulas on numbers, each with its theorem or proof.

Throughout, `orders` is (n_orders,) float64 in (1, 1024], and a divergence is (n_orders,) in nats. a is an order,
b = a - 1, L the ratio of the probabilities of an output on two neighbours, q a sampling probability in (0, 1], and z a
noise multiplier in [1e-3, 1e6]: the noise's standard deviation, or scale for Laplace, over the sensitivity of the sum.
"""
