// A code becomes a word and the answer to "is it internal?", from a table of 2^N entries {internal, word}.
module tersify_decoder #(
    parameter N = 4,
    parameter M = 8,
    parameter SIGN_IN_CODE = 0,
    parameter LUT_FILE = "layer1_lut.mem"
) (
    input  wire [N-1:0] code,
    output wire signed [M+SIGN_IN_CODE-1:0] word,
    output wire internal
);
    reg [M:0] entries [0:(1 << N) - 1];
    initial $readmemh(LUT_FILE, entries);

    wire [M:0] entry = entries[code];
    assign internal = entry[M];

    generate
        if (SIGN_IN_CODE) begin : magnitude
            // Codes ascend with their levels, so the lower half of them is negative.
            wire signed [M:0] size = {1'b0, entry[M-1:0]};
            assign word = code[N-1] ? size : -size;
        end else begin : twos_complement
            assign word = entry[M-1:0];
        end
    endgenerate
endmodule
