"""A folder an FPGA engineer can use: tables, codes, biases, Verilog, golden vectors and
a Makefile.
"""

from tersify.export.fpga.fpga_folder import export_fpga

__all__ = ["export_fpga"]
