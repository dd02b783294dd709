"""The whole product on real input: `make demo`."""
