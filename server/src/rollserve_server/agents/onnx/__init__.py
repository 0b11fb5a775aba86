"""Models in the ONNX format, run by ONNX Runtime."""
