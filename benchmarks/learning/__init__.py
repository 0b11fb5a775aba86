"""Time to a return: the trainers in `examples`, beside those of other libraries with the same hyperparameters."""
