"""Rényi divergences as pure formulas on numbers, each with its theorem or proof."""
