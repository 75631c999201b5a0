#include "engine/epilogue.hpp"

#include <stdexcept>
#include <string>

namespace tersify {

EpilogueView Epilogue::view() const {
  auto data = [](const std::vector<float>& v) { return v.empty() ? nullptr : v.data(); };
  return {.scale = data(scale),
          .shift = data(shift),
          .scale2 = data(scale2),
          .shift2 = data(shift2),
          .activation = activation,
          .low = low,
          .high = high,
          .slopes = data(slopes)};
}

Epilogue Epilogue::checked(int channels) const {
  if (activation == Activation::Clamp && !(low <= high))
    throw std::invalid_argument("an epilogue clamps from low to high, got " + std::to_string(low) + " to " +
                                std::to_string(high));
  Epilogue made = *this;
  for (std::vector<float>* constants : {&made.scale, &made.shift, &made.scale2, &made.shift2})
    if (!constants->empty() && constants->size() != size_t(channels))
      throw std::invalid_argument("an epilogue of " + std::to_string(channels) +
                                  " channels needs as many constants or none, got " +
                                  std::to_string(constants->size()));
  auto complete = [&](std::vector<float>& scales, std::vector<float>& shifts) {
    if (scales.empty() == shifts.empty()) return;
    if (scales.empty()) scales.assign(channels, 1.0f);
    if (shifts.empty()) shifts.assign(channels, 0.0f);
  };
  complete(made.scale, made.shift);
  complete(made.scale2, made.shift2);
  return made;
}

Epilogue Epilogue::folded() const {
  Epilogue made = *this;
  if (scale2.empty()) return made;
  made.scale2.clear();
  made.shift2.clear();
  if (scale.empty()) {
    made.scale = scale2;
    made.shift = shift2;
    return made;
  }
  for (size_t c = 0; c < scale.size(); ++c) {
    made.scale[c] = scale[c] * scale2[c];
    made.shift[c] = shift[c] * scale2[c] + shift2[c];
  }
  return made;
}

}  // namespace tersify
