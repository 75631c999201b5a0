// What directories are made of: their zstd frames may refer to it as to text before them. The same text stands in
// src/tersify/codec/small.py and in docs/reference/format.md, and may never change.
#pragma once

#include <string_view>

namespace tersify::lib {

constexpr std::string_view kDirectoryText =
    R"__({"recipe":"description = \"Ternary weights with a wanted fraction of zeros: one threshold\"warmup_ep)__"
    R"__(ochs = 5\nover = 100\nmethods = [{ method = \"prune\", sparsity = 0.9, scope = \"global\", floor = 0)__"
    R"__(.01, schedule = \"one-shot\" }]\n"recipe":"description = \"Uniform 8-bit weights, symmetric, one sca)__"
    R"__(le per output channel\"\nstart = \"trained\"\n\n[[rules]]\nweights = [\"*\"]\nmethods = [{ method = )__"
    R"__(\"uniform\", per_channel = true }]\n\n[train]"recipe":"description = \"4-bit codes, each weight coun)__"
    R"__(ted by its squared gradient over calibration batches\"\nstart = \"trained\"\n\n[[rules]]\nweights = )__"
    R"__([\"*\"]\nmethods = [{ method = \"lookup\", fit = \"sensitivity\" }]\n\n[train]"recipe":"description )__"
    R"__(= \"4-bit codes for the best table of 16 8-bit words that a layer can have; no training needed\"\nst)__"
    R"__(art = \"trained\"\n\n[[rules]]\nweights = \"*\"\nmethods = [{ method = \"lookup\" }]\n\n[train]\nopt)__"
    R"__(imizer = \"adam\"\nlr = 0.0005\nlr_size = 0.06\nschedule = \"cosine\"\n","metadata":{},"aliases":{},)__"
    R"__("groups":[["packed",0],["split",1],["zeros",2],["planes",3],["rans",4],["zstd",5],["columns",6]],"pr)__"
    R"__(ovenance":{"time":"2026-11-17T00:00:00Z","tersify":"0.1.0","torch":"2.13.0+cpu","python":"3.11.7","m)__"
    R"__(achine":"x86_64"},"recipe":"{"tensors":[{"n":"layer1.0.bn1.running_mean","s":[64],"d":["F32",1]},{"n)__"
    R"__(":"layer1.0.bn1.running_var","s":[64],"d":["F32",1]},{"n":"layer1.0.bn1.num_batches_tracked","s":[],)__"
    R"__("d":["I64",2]},{"n":"features.0.conv2.weight","s":[128,64,3,3],"b":["F32",-1,256],"m":["F32",1,128,1)__"
    R"__(,1,1],"c":0},{"n":"fc.weight","s":[10,32],"v":["F16>F32",1,64],"b":["F32",1,3],"c":0,"a":0},{"n":"co)__"
    R"__(nv1.weight","s":[16,3,3,3],"b":["F32",1,16],"c":0,"f":{"n":4,"m":8,"k":1,"integer_bits":0,"sign_in_c)__"
    R"__(ode":0,"saturated":0}},{"n":"conv1.bias","s":[32],"d":["F32",1]},{"n":")__";

}  // namespace tersify::lib
