// A fully connected layer on one lane. Codes and activations lie in memories outside that answer one clock after the
// address; code (output, input) is at output * INPUTS + input. Each output takes INPUTS + 3 clocks.
module tersify_layer #(
    parameter INPUTS = 8,
    parameter OUTPUTS = 4,
    parameter N = 4,
    parameter M = 8,
    parameter K = 3,
    parameter X_WIDTH = 8,
    parameter Y_WIDTH = 8,
    parameter ACC_WIDTH = 32,
    parameter BIAS_WIDTH = 8,
    parameter BIAS_SHIFT = 0,
    parameter OUTPUT_SHIFT = 8,
    parameter RELU = 1,
    parameter ROUND_HALF_UP = 1,
    parameter SIGN_IN_CODE = 0,
    parameter SHIFT_PRODUCT = 0,
    parameter LUT_FILE = "layer1_lut.mem",
    parameter BIAS_FILE = "layer1_bias.mem"
) (
    input  wire clk,
    input  wire reset,
    input  wire start,
    output reg  busy,
    output reg  [31:0] x_address,
    input  wire signed [X_WIDTH-1:0] x,
    output reg  [31:0] code_address,
    input  wire [N-1:0] code,
    output reg  y_valid,
    output reg  [31:0] y_address,
    output reg  signed [Y_WIDTH-1:0] y
);
    reg signed [BIAS_WIDTH-1:0] biases [0:OUTPUTS-1];
    initial $readmemh(BIAS_FILE, biases);

    reg [31:0] neuron;
    reg load, fetched, last_fetched, finished;
    wire signed [ACC_WIDTH-1:0] bias = biases[neuron];
    wire signed [ACC_WIDTH-1:0] acc;

    tersify_lane #(
        .N(N), .M(M), .K(K), .X_WIDTH(X_WIDTH), .ACC_WIDTH(ACC_WIDTH), .SIGN_IN_CODE(SIGN_IN_CODE),
        .SHIFT_PRODUCT(SHIFT_PRODUCT), .LUT_FILE(LUT_FILE)
    ) lane (
        .clk(clk), .load(load), .start_value(bias <<< BIAS_SHIFT), .enable(fetched), .x(x), .code(code), .acc(acc)
    );

    // Behind the last product: ReLU, round, saturate.
    localparam signed [ACC_WIDTH:0] HALF = (ROUND_HALF_UP && OUTPUT_SHIFT > 0) ? (1 <<< (OUTPUT_SHIFT - 1)) : 0;
    localparam signed [ACC_WIDTH:0] HIGHEST = (1 <<< (Y_WIDTH - 1)) - 1;
    localparam signed [ACC_WIDTH:0] LOWEST = -(1 <<< (Y_WIDTH - 1));
    wire signed [ACC_WIDTH:0] kept = (RELU && acc < 0) ? 0 : acc;
    wire signed [ACC_WIDTH:0] rounded = (kept + HALF) >>> OUTPUT_SHIFT;
    wire signed [Y_WIDTH-1:0] saturated =
        rounded > HIGHEST ? HIGHEST[Y_WIDTH-1:0] : rounded < LOWEST ? LOWEST[Y_WIDTH-1:0] : rounded[Y_WIDTH-1:0];

    always @(posedge clk) begin
        y_valid <= 0;
        load <= 0;
        fetched <= 0;
        finished <= 0;
        if (reset) begin
            busy <= 0;
            last_fetched <= 0;
        end else if (!busy) begin
            if (start) begin
                busy <= 1;
                load <= 1;
                neuron <= 0;
                x_address <= 0;
                code_address <= 0;
                last_fetched <= 0;
            end
        end else if (finished) begin
            y <= saturated;
            y_address <= neuron;
            y_valid <= 1;
            if (neuron == OUTPUTS - 1) busy <= 0;
            else begin
                neuron <= neuron + 1;
                load <= 1;
                x_address <= 0;
                last_fetched <= 0;
            end
        end else if (last_fetched) begin
            finished <= 1;
        end else begin
            // The memories answer the address that is out now; the lane adds in the next clock.
            fetched <= 1;
            code_address <= code_address + 1;
            x_address <= x_address + 1;
            last_fetched <= x_address == INPUTS - 1;
        end
    end
endmodule
