"""Benchmarks, each beside its peer in the same run. See README.md; ``python -m bench`` runs them."""
