// SPDX-License-Identifier: Apache-2.0
/*
 * Applies one rule to numbers from the standard input and writes what it makes of them, for a test that holds them against
 * the rules in TypeScript. One thread.
 *
 *   quantize_rules codes RULE TYPE amax|stored GLOBAL    pairs (largest magnitude, value) of float32 -> (stored, code) of uint32
 *   quantize_rules groups RULE TYPE amax|stored GLOBAL   17 float32 each, largest and a group -> (code, 16 codes) of uint32
 *   quantize_rules read RULE TYPE stored GLOBAL          triples (code, stored, unused) of uint32 -> float32
 *
 * Rules and types by their numbers, GLOBAL by its bits.
 */
#include <tensorferry/quantize_rules.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

using namespace tensorferry;

namespace {

using Words = std::vector<uint32_t>;

Words everything() {
  Words words(1 << 16);
  size_t count = 0;
  while (const size_t got = std::fread(words.data() + count, 4, words.size() - count, stdin)) {
    count += got;
    if (count == words.size()) words.resize(2 * count);
  }
  words.resize(count);
  return words;
}

template <Encoding encoding>
uint32_t encode(float value, float factor, StatedSource source) {
  return codeOf<encoding>(value, factor, source);
}

uint32_t encodeBy(Encoding encoding, float value, float factor, StatedSource source) {
  static constexpr uint32_t (*encoders[encodingCount])(float, float, StatedSource) = {
      encode<Encoding::Float8Product>,  encode<Encoding::Float8RoundedProduct>,
      encode<Encoding::Float8Quotient>, encode<Encoding::Float8RoundedQuotient>,
      encode<Encoding::Float4Product>,  encode<Encoding::Float4RoundedProduct>,
      encode<Encoding::Float4Quotient>, encode<Encoding::Float4QuotientOrSeven>,
      encode<Encoding::Float4SignEven>, encode<Encoding::Float4SignUp>,
      encode<Encoding::Float4NotAbove>, encode<Encoding::Float4NoMinusZero>};
  return encoders[static_cast<size_t>(encoding)](value, factor, source);
}

}  // namespace

int main(int count, char** given) {
  if (count != 6) return 2;
  const auto rule = static_cast<QuantizeRule>(std::atoi(given[2]));
  const StatedSource source{static_cast<DType>(std::atoi(given[3]))};
  const float number = floatOf(static_cast<uint32_t>(std::strtoul(given[5], nullptr, 10)));
  const GlobalScaling global =
      std::strcmp(given[4], "amax") == 0 ? globalFromMaximum(rule, number, source) : globalFromStored(rule, number);
  const Words words = everything();
  Words made;
  if (std::strcmp(given[1], "codes") == 0) {
    made = {bitsOf(quiet(global.stored))};
    for (size_t at = 0; at + 1 < words.size(); at += 2) {
      const BlockScaling scaling = scalingBy(rule, floatOf(words[at]), global, source);
      made.push_back(scaling.stored);
      made.push_back(encodeBy(encodingOf(rule), floatOf(words[at + 1]), scaling.factor, source));
    }
  } else if (std::strcmp(given[1], "groups") == 0) {
    for (size_t at = 0; at + 16 < words.size(); at += 17) {
      const auto valueAt = [&](uint32_t i) { return floatOf(words[at + 1 + i]); };
      BlockScaling scaling = scalingBy(rule, floatOf(words[at]), global, source);
      const BlockScaling other = otherScaling(floatOf(words[at]), global);
      if (errorOf(other, global.stored, 16, valueAt) < errorOf(scaling, global.stored, 16, valueAt)) scaling = other;
      made.push_back(scaling.stored);
      for (uint32_t i = 0; i < 16; i++) made.push_back(encodeBy(encodingOf(rule), valueAt(i), scaling.factor, source));
    }
  } else {
    for (size_t at = 0; at + 2 < words.size(); at += 3) {
      const float code = isPacked(formOf(rule)) ? decodeFloat4(words[at]) : decodeFloat8E4M3(words[at]);
      made.push_back(bitsOf(quiet(readScaled(rule, code, words[at + 1], global.stored))));
    }
  }
  return std::fwrite(made.data(), 4, made.size(), stdout) == made.size() ? 0 : 1;
}
