"""The generated classes of the step protocol."""
