"""Multilayer perceptrons in numpy, with recurrent cores."""
