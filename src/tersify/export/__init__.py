"""Hand a compressed network over: a folder for an FPGA engineer, an ONNX file, dense
safetensors.
"""
