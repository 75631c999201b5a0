// A fully connected layer on LANES lanes that share each input, one neuron a lane. Codes and activations lie in memories
// outside that answer one clock after the address. Word `group * INPUTS + input` of the code memory holds a code for each
// neuron of the group, the first in the lowest bits. A group takes INPUTS + 1 clocks; meanwhile the one before it leaves
// through a single stage of bias, ReLU, rounding and saturation, so there must be no more lanes than inputs.
module tersify_layer #(
    parameter INPUTS = 8,
    parameter OUTPUTS = 4,
    parameter LANES = 1,
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
    parameter ROUNDING = 1,  // 0 floor, 1 half up, 2 half to even, 3 toward zero
    parameter SIGN_IN_CODE = 0,
    parameter SHIFT_PRODUCT = 0,
    parameter LUT_FILE = "layer1_lut.mem",
    parameter BIAS_FILE = "layer1_bias.mem"
) (
    input  wire clk,
    input  wire reset,
    input  wire start,
    output wire busy,
    output wire [31:0] x_address,
    input  wire signed [X_WIDTH-1:0] x,
    output wire [31:0] code_address,
    input  wire [LANES*N-1:0] code,
    output reg  y_valid,
    output wire [31:0] y_address,
    output reg  signed [Y_WIDTH-1:0] y
);
    localparam GROUPS = (OUTPUTS + LANES - 1) / LANES;
    localparam IN_LAST_GROUP = OUTPUTS - (GROUPS - 1) * LANES;

    reg signed [BIAS_WIDTH-1:0] biases [0:OUTPUTS-1];
    initial $readmemh(BIAS_FILE, biases);

    reg [$clog2(INPUTS+1)-1:0] input_number;
    reg [$clog2(INPUTS*GROUPS+1)-1:0] code_number;
    reg [$clog2(GROUPS+1)-1:0] group;
    reg [$clog2(OUTPUTS+1)-1:0] shown;  // outputs shown so far
    reg [$clog2(LANES+1)-1:0] waiting;
    reg running, clear, capture, last_group;
    assign x_address = input_number;
    assign code_address = code_number;
    assign y_address = shown - 1;
    wire group_ends = input_number == INPUTS;
    wire moves = capture || waiting != 0;
    assign busy = running || moves;

    // Finished sums wait in `held` and move towards lane 0, where they leave.
    wire signed [ACC_WIDTH-1:0] held_chain [0:LANES];
    assign held_chain[LANES] = 0;

    genvar lane;
    generate
        for (lane = 0; lane < LANES; lane = lane + 1) begin : lanes
            wire signed [ACC_WIDTH-1:0] acc;
            tersify_lane #(
                .N(N), .M(M), .K(K), .X_WIDTH(X_WIDTH), .ACC_WIDTH(ACC_WIDTH), .SIGN_IN_CODE(SIGN_IN_CODE),
                .SHIFT_PRODUCT(SHIFT_PRODUCT), .LUT_FILE(LUT_FILE)
            ) mac (
                .clk(clk), .clear(clear), .x(x), .code(code[lane*N +: N]), .acc(acc)
            );
            reg signed [ACC_WIDTH-1:0] held;
            assign held_chain[lane] = held;
            always @(posedge clk)
                if (moves) held <= capture ? acc : held_chain[lane+1];
        end
    endgenerate

    wire signed [ACC_WIDTH-1:0] bias = biases[shown];
    wire signed [ACC_WIDTH-1:0] sum = held_chain[0] + (bias <<< BIAS_SHIFT);
    localparam signed [ACC_WIDTH:0] HALF = (1 <<< OUTPUT_SHIFT) >>> 1;
    localparam signed [ACC_WIDTH:0] ALMOST_ONE = (1 <<< OUTPUT_SHIFT) - 1;
    localparam signed [ACC_WIDTH:0] HIGHEST = (1 <<< (Y_WIDTH - 1)) - 1;
    localparam signed [ACC_WIDTH:0] LOWEST = -(1 <<< (Y_WIDTH - 1));
    wire signed [ACC_WIDTH:0] kept = (RELU && sum < 0) ? 0 : sum;
    wire signed [ACC_WIDTH:0] odd = {{ACC_WIDTH{1'b0}}, kept[OUTPUT_SHIFT]};
    wire signed [ACC_WIDTH:0] bump =
        ROUNDING == 1 ? HALF :
        ROUNDING == 2 ? (OUTPUT_SHIFT > 0 ? HALF - 1 + odd : 0) :
        ROUNDING == 3 ? (kept < 0 ? ALMOST_ONE : 0) : 0;
    wire signed [ACC_WIDTH:0] rounded = (kept + bump) >>> OUTPUT_SHIFT;
    wire signed [Y_WIDTH-1:0] saturated =
        rounded > HIGHEST ? HIGHEST[Y_WIDTH-1:0] : rounded < LOWEST ? LOWEST[Y_WIDTH-1:0] : rounded[Y_WIDTH-1:0];

    // The memories answer the address that is out now, and the lanes add in the next clock. Behind a group's last address
    // comes an empty one: while its answer arrives the sums are complete, and are captured and cleared.
    always @(posedge clk) begin
        clear <= !running || group_ends;
        capture <= running && group_ends;
        last_group <= group == GROUPS - 1;
        y_valid <= waiting != 0;
        if (waiting != 0) begin
            y <= saturated;
            shown <= shown + 1;
            waiting <= waiting - 1;
        end
        if (capture) waiting <= last_group ? IN_LAST_GROUP : LANES;
        if (reset) begin
            running <= 0;
            clear <= 1;
            capture <= 0;
            waiting <= 0;
            y_valid <= 0;
        end else if (!busy) begin
            if (start) begin
                running <= 1;
                group <= 0;
                input_number <= 0;
                code_number <= 0;
                shown <= 0;
            end
        end else if (running) begin
            if (group_ends) begin
                input_number <= 0;
                group <= group + 1;
                running <= group != GROUPS - 1;
            end else begin
                input_number <= input_number + 1;
                code_number <= code_number + 1;
            end
        end
    end
endmodule
