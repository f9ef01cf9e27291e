"""The service on a Citus cluster: `make citus` runs these, with the programs that it has built."""
