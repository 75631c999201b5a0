// Runs the golden vectors through every layer and compares bit for bit. A layer gets the golden inputs of its own,
// so that a mistake shows where it is made.
`timescale 1ns / 1ps
`include "params.vh"
`ifndef SHIFT_PRODUCT
`define SHIFT_PRODUCT 0
`endif
`ifndef VECTORS
`define VECTORS `GOLDEN_VECTORS
`endif

module layer_test #(
    parameter NUMBER = 1,
    parameter INPUTS = 8,
    parameter OUTPUTS = 4,
    parameter LANES = 1,
    parameter N = 4,
    parameter M = 8,
    parameter K = 0,
    parameter X_WIDTH = 8,
    parameter Y_WIDTH = 8,
    parameter ACC_WIDTH = 32,
    parameter BIAS_WIDTH = 8,
    parameter BIAS_SHIFT = 0,
    parameter OUTPUT_SHIFT = 8,
    parameter RELU = 1,
    parameter ROUNDING = 1,
    parameter SIGN_IN_CODE = 0,
    parameter LUT_FILE = "",
    parameter CODES_FILE = "",
    parameter BIAS_FILE = "",
    parameter INPUTS_FILE = "",
    parameter EXPECTED_FILE = ""
) (
    input wire clk,
    input wire reset,
    output reg done,
    output reg [31:0] errors
);
    localparam GROUPS = (OUTPUTS + LANES - 1) / LANES;
    reg [LANES*N-1:0] codes [0:INPUTS*GROUPS-1];
    reg [X_WIDTH-1:0] vectors [0:`GOLDEN_VECTORS*INPUTS-1];
    reg [Y_WIDTH-1:0] expected [0:`GOLDEN_VECTORS*OUTPUTS-1];
    initial begin
        $readmemh(CODES_FILE, codes);
        $readmemh(INPUTS_FILE, vectors);
        $readmemh(EXPECTED_FILE, expected);
    end

    reg start;
    wire busy, y_valid;
    wire [31:0] x_address, code_address, y_address;
    reg signed [X_WIDTH-1:0] x;
    reg [LANES*N-1:0] code;
    wire signed [Y_WIDTH-1:0] y;
    reg [31:0] vector, first_input, outputs_seen, clocks;

    tersify_layer #(
        .INPUTS(INPUTS), .OUTPUTS(OUTPUTS), .LANES(LANES), .N(N), .M(M), .K(K), .X_WIDTH(X_WIDTH), .Y_WIDTH(Y_WIDTH),
        .ACC_WIDTH(ACC_WIDTH), .BIAS_WIDTH(BIAS_WIDTH), .BIAS_SHIFT(BIAS_SHIFT), .OUTPUT_SHIFT(OUTPUT_SHIFT),
        .RELU(RELU), .ROUNDING(ROUNDING), .SIGN_IN_CODE(SIGN_IN_CODE), .SHIFT_PRODUCT(`SHIFT_PRODUCT),
        .LUT_FILE(LUT_FILE), .BIAS_FILE(BIAS_FILE)
    ) layer (  // once done it stands still, which saves the simulator's time
        .clk(clk && !done), .reset(reset), .start(start), .busy(busy), .x_address(x_address), .x(x),
        .code_address(code_address), .code(code), .y_valid(y_valid), .y_address(y_address), .y(y)
    );

    initial done = 0;
    always @(posedge clk) if (!done) begin
        x <= vectors[first_input + x_address];
        code <= codes[code_address];
        start <= 0;
        clocks <= start ? 0 : clocks + 1;
        if (reset) begin
            vector <= 0;
            first_input <= 0;
            outputs_seen <= 0;
            errors <= 0;
            start <= 1;
            clocks <= 0;
        end else if (y_valid) begin
            outputs_seen <= outputs_seen + 1;
            if (y !== $signed(expected[outputs_seen]) || outputs_seen != vector * OUTPUTS + y_address) begin
                errors <= errors + 1;
                if (errors < 10)
                    $display("layer %0d, vector %0d, output %0d: %0d, expected %0d", NUMBER, vector, y_address, y,
                             $signed(expected[outputs_seen]));
            end
            if (y_address == OUTPUTS - 1) begin
                if (vector % 100 == 99) begin
                    $display("layer %0d: %0d vectors", NUMBER, vector + 1);
                    $fflush;
                end
                if (vector == 0) $display("layer %0d: %0d clocks a vector", NUMBER, clocks);
                if (vector == `VECTORS - 1) done <= 1;
                else begin
                    vector <= vector + 1;
                    first_input <= first_input + INPUTS;
                    start <= 1;
                end
            end
        end
    end
endmodule

module testbench;
    reg clk = 0, reset = 1;
    always #5 clk = !clk;
    initial begin
        repeat (3) @(posedge clk);
        #1 reset = 0;
    end
    `include "layers.vh"
endmodule
