"""Averages of activations over Gaussian fields, one file an activation."""
