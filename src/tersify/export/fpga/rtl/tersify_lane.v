// One multiply-accumulate lane behind a table decoder. An external word is 2^K times coarser than an internal one:
// SHIFT_PRODUCT = 0 widens the weight before a wider multiplier, 1 shifts the product of a narrow multiplier.
module tersify_lane #(
    parameter N = 4,
    parameter M = 8,
    parameter K = 3,
    parameter X_WIDTH = 8,
    parameter ACC_WIDTH = 32,
    parameter SIGN_IN_CODE = 0,
    parameter SHIFT_PRODUCT = 0,
    parameter LUT_FILE = "layer1_lut.mem"
) (
    input  wire clk,
    input  wire clear,
    input  wire signed [X_WIDTH-1:0] x,
    input  wire [N-1:0] code,
    output reg  signed [ACC_WIDTH-1:0] acc
);
    localparam W = M + SIGN_IN_CODE;
    wire signed [W-1:0] word;
    wire internal;
    tersify_decoder #(.N(N), .M(M), .SIGN_IN_CODE(SIGN_IN_CODE), .LUT_FILE(LUT_FILE)) decoder (
        .code(code), .word(word), .internal(internal)
    );

    generate
        if (SHIFT_PRODUCT) begin : shift_product
            wire signed [W+X_WIDTH-1:0] narrow = x * word;
            wire signed [W+K+X_WIDTH-1:0] fine = narrow;
            always @(posedge clk)
                if (clear) acc <= 0;
                else acc <= acc + (internal ? fine : (fine <<< K));
        end else begin : widen_weight
            wire signed [W+K-1:0] fine = word;
            wire signed [W+K-1:0] weight = internal ? fine : (fine <<< K);
            always @(posedge clk)
                if (clear) acc <= 0;
                else acc <= acc + x * weight;
        end
    endgenerate
endmodule
