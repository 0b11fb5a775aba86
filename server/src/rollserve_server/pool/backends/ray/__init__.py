"""Ray as a backend; the only package that imports Ray."""
