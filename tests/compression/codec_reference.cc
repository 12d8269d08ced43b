// What payloads stand for, by arithmetic of the tests' own on the text of docs/wire-format.md, and
// how far that may be from what was encoded.
#include <algorithm>
#include <bit>
#include <cmath>

#include "base/philox.h"
#include "codec_testing.h"
#include "gtest/gtest.h"

#include <lz4.h>
#include <zstd.h>

namespace tributary::compression {
namespace {

// Reads a payload's bits, the lowest of each byte first.
class Bits {
 public:
  explicit Bits(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  uint64_t Bit() { return Take(1); }
  uint64_t Take(int n) {
    uint64_t value = 0;
    for (int b = 0; b < n;) {
      const int here = std::min(n - b, 8 - static_cast<int>(at_ % 8));  // of one byte
      const uint64_t byte = bytes_[at_ / 8];
      value |= (byte >> at_ % 8 & ((1u << here) - 1)) << b;
      b += here;
      at_ += here;
    }
    return value;
  }
  void ToByte() { at_ = (at_ + 7) / 8 * 8; }
  size_t byte() const { return at_ / 8; }
  void Seek(size_t byte) { at_ = 8 * byte; }

 private:
  const std::span<const uint8_t> bytes_;
  size_t at_ = 0;
};

// A binary float of `m` mantissa and `e` exponent bits, by the definition.
double Number(uint64_t bits, int e, int m) {
  const int exponent = static_cast<int>(bits >> m) & ((1 << e) - 1);
  const auto mantissa = static_cast<double>(bits & ((uint64_t{1} << m) - 1));
  const int bias = (1 << (e - 1)) - 1;
  const double magnitude =
      exponent == 0
          ? std::ldexp(mantissa, 1 - bias - m)
          : std::ldexp(mantissa + static_cast<double>(uint64_t{1} << m), exponent - bias - m);
  return (bits >> (e + m)) != 0 ? -magnitude : magnitude;
}

double Signed(uint64_t code, int bits) {
  const auto value = static_cast<double>(code);
  return code >> (bits - 1) != 0 ? value - std::ldexp(1.0, bits) : value;
}

// The number after "key=" in the spec, or `usual`; "2^-12" is 12.
int Option(const CodecCase& c, const std::string& key, int usual) {
  const size_t at = c.spec.find(key + "=");
  if (at == std::string::npos) return usual;
  const std::string value = c.spec.substr(at + key.size() + 1);
  return std::stoi(value.rfind("2^-", 0) == 0 ? value.substr(3) : value);
}

// What each code of a block format stands for, in scales.
std::vector<double> CodeValues(const CodecCase& c) {
  const std::string name = c.name();
  const bool fp8 = name == "fp8" || name == "mxfp8", e5m2 = c.has("e5m2");
  const int width = name == "sign"                      ? 1
                    : name == "int2"                    ? 2
                    : name == "int4" || name == "mxfp4" ? 4
                    : name == "hq"                      ? Option(c, "bits", 8)
                                                        : 8;
  std::vector<double> values(size_t{1} << width);
  for (uint64_t code = 0; code < values.size(); ++code) {
    double& value = values[code];
    value = Signed(code, width);
    if (name == "sign") value = code != 0 ? -1 : 1;
    if (fp8) value = e5m2 ? Number(code, 5, 2) : Number(code, 4, 3);
    if (name == "mxfp4") value = Number(code, 2, 1);
    if (name == "mxint8") value /= 64;
  }
  return values;
}

std::vector<double> BlockValues(const CodecCase& c, std::span<const uint8_t> payload, uint64_t n) {
  const bool mx = c.name().rfind("mx", 0) == 0;
  const bool shared = c.name() == "hq" || c.has("vote");
  const std::vector<double> codes = CodeValues(c);
  const int width = std::countr_zero(codes.size());
  Bits bits(payload);
  std::vector<double> values;
  values.reserve(n);
  double scale = shared ? std::ldexp(1.0, -Option(c, "step", 12)) : 0;
  for (uint64_t from = 0; from < n; from += c.block) {
    bits.ToByte();
    if (mx) scale = std::ldexp(1.0, static_cast<int>(bits.Take(8)) - 127);
    if (!mx && !shared) scale = Number(bits.Take(32), 8, 23);
    const uint64_t end = std::min(n, from + c.block);
    for (uint64_t i = from; i < end; ++i) values.push_back(scale * codes[bits.Take(width)]);
  }
  bits.ToByte();
  EXPECT_EQ(bits.byte(), payload.size());
  return values;
}

std::vector<uint64_t> TilePlaces(Bits* bits, uint64_t word, uint64_t length) {
  const uint64_t count = (word & 0x7FFF) + 1, tag = word >> 28;
  uint64_t bytes = word >> 15 & 0x1FFF;
  const bool stream_vbyte = tag == 0 && bytes > 4096;
  if (stream_vbyte) bytes -= 4096;
  const size_t start = bits->byte();
  std::vector<uint64_t> places;
  if (stream_vbyte) {
    std::vector<int> lengths;
    for (uint64_t j = 0; j < count; ++j) lengths.push_back(1 << bits->Take(2) >> 1);
    bits->ToByte();
    uint64_t next = 0;
    for (const int length : lengths) {
      places.push_back(next + bits->Take(8 * length));
      next = places.back() + 1;
    }
  } else if (tag == 15) {
    for (uint64_t i = 0; i < length; ++i) {
      if (bits->Bit() != 0) places.push_back(i);
    }
  } else {
    std::vector<uint64_t> quotients(count);
    for (uint64_t& q : quotients) {
      while (bits->Bit() == 0) ++q;
    }
    bits->ToByte();
    uint64_t next = 0;
    for (const uint64_t q : quotients) {
      places.push_back(next + (q << tag) + bits->Take(static_cast<int>(tag)));
      next = places.back() + 1;
    }
  }
  bits->ToByte();
  EXPECT_EQ(bits->byte(), start + bytes);
  EXPECT_EQ(places.size(), count);
  return places;
}

std::vector<double> TopKValues(const CodecCase& c, std::span<const uint8_t> payload, uint64_t n) {
  std::vector<double> values(n);
  if (n == 0) return values;
  Bits bits(payload);
  const bool int8 = c.has("int8"), ternary = c.has("ternary"), half = c.has("fp16");
  const double scale = int8 || ternary ? Number(bits.Take(32), 8, 23) : 0;
  for (uint64_t from = 0; from < n; from += kTileElements) {
    const uint64_t word = bits.Take(32);
    if (word == 0) continue;
    for (const uint64_t place : TilePlaces(&bits, word, std::min(kTileElements, n - from))) {
      double& v = values.at(from + place);
      if (int8) {
        v = scale * Signed(bits.Take(8), 8);
      } else if (ternary) {
        v = bits.Bit() != 0 ? -scale : scale;
      } else {
        v = half ? Number(bits.Take(16), 5, 10) : Number(bits.Take(32), 8, 23);
      }
    }
    bits.ToByte();
  }
  EXPECT_EQ(bits.byte(), payload.size());
  return values;
}

std::vector<double> RandKValues(const CodecCase& c, std::span<const uint8_t> payload, uint64_t n) {
  std::vector<double> values(n);
  if (n == 0) return values;
  Bits bits(payload);
  const uint64_t key = bits.Take(64), stride = c.has("0.5") ? 2 : 100;
  const bool half = c.has("fp16");
  const double factor = c.has("scaled=no") ? 1 : static_cast<double>(stride);
  for (uint64_t tile = 0; tile * kTileElements < n; ++tile) {
    const uint64_t length = std::min(kTileElements, n - tile * kTileElements);
    PhiloxBlock words = {};
    for (uint64_t j = 0; j * stride < length; ++j) {
      if (j % 4 == 0) {
        words = Philox4x32(key, {static_cast<uint32_t>(j / 4), static_cast<uint32_t>(tile), 0, 0});
      }
      const uint64_t place = j * stride + (words[j % 4] * stride >> 32);
      const double v = half ? Number(bits.Take(16), 5, 10) : Number(bits.Take(32), 8, 23);
      if (place < length) values[tile * kTileElements + place] = v * factor;
    }
  }
  EXPECT_EQ(bits.byte(), payload.size());
  return values;
}

// Sylvester's matrix times v: distances 1, 2, 4, ... (the code under test goes the other way).
void Transform(std::vector<int64_t>* v) {
  for (size_t h = 1; h < v->size(); h *= 2) {
    for (size_t from = 0; from < v->size(); from += 2 * h) {
      for (size_t i = from; i < from + h; ++i) {
        const int64_t a = (*v)[i], b = (*v)[i + h];
        (*v)[i] = a + b;
        (*v)[i + h] = a - b;
      }
    }
  }
}

std::vector<double> EdenValues(const CodecCase& c, std::span<const uint8_t> payload, uint64_t n) {
  static const std::vector<std::vector<int64_t>> levels = {
      {1}, {38, 127}, {14, 44, 78, 125}, {6, 18, 30, 43, 58, 74, 95, 126}};
  std::vector<double> values;
  if (n == 0) return values;
  values.reserve(n);
  const int width = Option(c, "bits", 4);
  Bits bits(payload);
  const uint64_t key = bits.Take(64);
  for (uint64_t from = 0; from < n; from += c.block) {
    const uint64_t length = std::min(c.block, n - from);
    const uint64_t size =
        length == c.block ? length : std::max<uint64_t>(16, std::bit_ceil(length));
    const double scale = Number(bits.Take(32), 8, 23);
    std::vector<int64_t> codes(size);
    for (int64_t& code : codes) code = static_cast<int64_t>(bits.Take(width == 3 ? 2 : width));
    if (width == 3) {
      for (int64_t& code : codes) code += static_cast<int64_t>(bits.Bit() << 2);
    }
    const int64_t half = int64_t{1} << (width - 1);
    for (int64_t& code : codes) {
      const int64_t level = levels[width - 1][code % half];
      code = code >= half ? -level : level;
    }
    Transform(&codes);
    PhiloxBlock words = {};
    for (uint64_t i = 0; i < length; ++i) {
      const uint64_t place = from + i;
      if (i == 0 || place % 128 == 0) {
        words = Philox4x32(key, {static_cast<uint32_t>(place / 128), 0, 0, 0});
      }
      const bool minus = words[place % 128 / 32] >> place % 32 & 1;
      values.push_back(scale * static_cast<double>(minus ? -codes[i] : codes[i]));
    }
  }
  EXPECT_EQ(bits.byte(), payload.size());
  return values;
}

// The factors' products, added in order; each product is exact.
std::vector<double> PowerValues(const CodecCase& c, std::span<const uint8_t> payload, uint64_t n) {
  std::vector<double> values;
  if (n == 0) return values;
  const auto rank = static_cast<uint64_t>(Option(c, "rank", 2));
  Bits bits(payload);
  const uint64_t columns = bits.Take(32), skip = bits.Take(32);
  const uint64_t rows = (skip + n + columns - 1) / columns;
  std::vector<double> p(rows * rank), q(rank * columns);
  for (double& v : p) v = Number(bits.Take(32), 8, 23);
  for (double& v : q) v = Number(bits.Take(32), 8, 23);
  EXPECT_EQ(bits.byte(), payload.size());
  values.reserve(n);
  for (uint64_t i = skip; i < skip + n; ++i) {
    const uint64_t row = i / columns, column = i % columns;
    double sum = 0;
    for (uint64_t k = 0; k < rank; ++k) sum += p[row * rank + k] * q[k * columns + column];
    values.push_back(sum);
  }
  return values;
}

// What lies between the blocks of 256 that the bitmap names is zero.
std::vector<double> ZerosValues(const CodecCase& inner, std::span<const uint8_t> payload,
                                uint64_t n) {
  Bits bits(payload);
  bits.Seek(8);
  EXPECT_EQ(bits.Take(32), n);
  std::vector<uint64_t> places;
  for (uint64_t from = 0; from < n; from += 256) {
    if (bits.Bit() == 0) continue;
    for (uint64_t i = from; i < std::min(from + 256, n); ++i) places.push_back(i);
  }
  bits.ToByte();
  const auto within = ReferenceValues(inner, payload.subspan(bits.byte()), places.size());
  std::vector<double> values(n);
  for (size_t j = 0; j < places.size(); ++j) values[places[j]] = within[j];
  return values;
}

double Median(std::vector<double>* values) {
  std::ranges::sort(*values);
  return (*values)[values->size() / 2];
}

// All 128 bits of an element's numbers, and the place that a row takes from them.
unsigned __int128 HashOf(uint64_t tile_key, uint64_t i) {
  const PhiloxBlock words = Philox4x32(tile_key, {static_cast<uint32_t>(i), 0, 0, 0});
  unsigned __int128 hash = 0;
  for (int word = 3; word >= 0; --word) hash = hash << 32 | words[word];
  return hash;
}
SketchPlace PlaceIn(unsigned __int128 hash, uint32_t row, uint64_t columns) {
  const auto bits = static_cast<uint64_t>(hash >> 25 * row & 0x1FFFFFF);
  return {row * columns + bits % (1 << 24) * columns / (1 << 24), bits >> 24 != 0 ? -1.0 : 1.0};
}

// Medians over the rows, of tiles that have cells; the others' elements as they are.
std::vector<double> SketchValues(const CodecCase& c, std::span<const uint8_t> payload, uint64_t n) {
  std::vector<double> values;
  if (n == 0) return values;
  const auto rows = static_cast<uint32_t>(Option(c, "rows", 5));
  const double fraction = std::stod(c.spec.substr(c.spec.find('(') + 1));
  const auto whole = static_cast<uint64_t>(fraction * 32768 / rows);
  Bits bits(payload);
  const uint64_t key = bits.Take(64);
  std::vector<double> cells, estimates;
  values.reserve(n);
  for (uint64_t tile = 0; tile * kTileElements < n; ++tile) {
    const uint64_t length = std::min(kTileElements, n - tile * kTileElements);
    const uint64_t columns = length < 1024 ? 0 : whole * length / 32768;
    cells.assign(columns == 0 ? length : rows * columns, 0);
    for (double& cell : cells) cell = Number(bits.Take(32), 8, 23);
    if (columns == 0) values.insert(values.end(), cells.begin(), cells.end());
    for (uint64_t i = 0; columns > 0 && i < length; ++i) {
      estimates.clear();
      const unsigned __int128 hash = HashOf(key + tile, i);
      for (uint32_t row = 0; row < rows; ++row) {
        const SketchPlace place = PlaceIn(hash, row, columns);
        estimates.push_back(place.sign * cells[place.cell]);
      }
      values.push_back(Median(&estimates));
    }
  }
  EXPECT_EQ(bits.byte(), payload.size());
  return values;
}

}  // namespace

SketchPlace SketchPlaceOf(uint64_t tile_key, uint64_t i, uint32_t row, uint64_t columns) {
  return PlaceIn(HashOf(tile_key, i), row, columns);
}

std::vector<double> ReferenceValues(const CodecCase& c, std::span<const uint8_t> payload,
                                    uint64_t n) {
  const std::string name = c.name();
  const size_t stage = c.spec.rfind(" |");
  const CodecCase inner{c.spec.substr(0, stage), c.block, c.stochastic};
  if (n > 0 && stage != std::string::npos && c.spec.find("zeros", stage) != std::string::npos) {
    return ZerosValues(inner, payload, n);
  }
  if (stage != std::string::npos && n > 0) {
    std::vector<uint8_t> plain(Bits(payload.subspan(8)).Take(32));
    const auto* from = reinterpret_cast<const char*>(payload.data()) + 12;
    const size_t size = payload.size() - 12;
    if (c.has("zstd")) {
      EXPECT_EQ(ZSTD_decompress(plain.data(), plain.size(), from, size), plain.size());
    } else {
      EXPECT_EQ(LZ4_decompress_safe(from, reinterpret_cast<char*>(plain.data()),
                                    static_cast<int>(size), static_cast<int>(plain.size())),
                static_cast<int>(plain.size()));
    }
    return ReferenceValues(inner, plain, n);
  }
  if (name == "topk") return TopKValues(c, payload, n);
  if (name == "randk") return RandKValues(c, payload, n);
  if (name == "eden") return EdenValues(c, payload, n);
  if (name == "powersgd") return PowerValues(c, payload, n);
  if (name == "sketch") return SketchValues(c, payload, n);
  if (name != "fp32" && name != "fp16" && name != "bf16") return BlockValues(c, payload, n);
  const int exponent = name == "fp16" ? 5 : 8;
  const int mantissa = name == "fp32" ? 23 : name == "fp16" ? 10 : 7;
  std::vector<double> values;
  values.reserve(n);
  Bits bits(payload);
  for (uint64_t i = 0; i < n; ++i) {
    values.push_back(Number(bits.Take(1 + exponent + mantissa), exponent, mantissa));
  }
  EXPECT_EQ(bits.byte(), payload.size());
  return values;
}

ErrorBound AllowedError(const CodecCase& c) {
  const std::string name = c.name();
  // Half a unit in the last place: relative where numbers are normal, absolute where subnormal.
  if (name == "fp32") return [](double, double) { return 0.0; };
  if (name == "fp16") {
    return [](double x, double) { return std::max(std::abs(x) * 0x1p-11, 0x1p-25); };
  }
  if (name == "bf16") {
    return [](double x, double) { return std::max(std::abs(x) * 0x1p-8, 0x1p-134); };
  }
  // Of top-k and random k, what is not sent is lost whole (what is kept: error_test.cc); of a
  // scaled random k, what is sent stands for `stride` elements.
  if (name == "topk" && c.has("ternary")) {
    return [](double x, double max) { return std::abs(x) + std::max(4096.0, max); };
  }
  if (name == "topk") return [](double x, double) { return std::abs(x) * (1 + 0x1p-20); };
  if (name == "randk") {
    const double fraction = std::stod(c.spec.substr(c.spec.find('(') + 1));
    const double stride = c.has("scaled=no") ? 1 : std::round(1 / fraction);
    const double most = std::max(1.0, (stride - 1) * (1 + 0x1p-20));
    return [most](double x, double) { return std::max(std::abs(x) * most, 0x1p-25); };
  }
  // A projection's part of an element is within the norm of its column (and all of it together
  // within the tensor's: error_test.cc).
  if (name == "powersgd") {
    return [](double x, double) { return std::abs(x) + 1.001 * 4097 * 1026; };
  }
  const auto of_block_max = [](double factor) {
    return [factor](double, double max) { return factor * max; };
  };
  // At worst an element has the whole tile in its cells (those that it has: error_test.cc; how near
  // it comes nearly always: sketch_test.cc).
  if (name == "sketch") return of_block_max(1.001 * static_cast<double>(c.block));
  // A rotation spreads errors over the block: by the triangle inequality, with room (of a block
  // together: error_test.cc and eden_test.cc).
  if (name == "eden") return of_block_max(3 * std::sqrt(static_cast<double>(c.block)));
  if (name == "hq" || c.has("vote")) {
    const double step = std::ldexp(1.0, -Option(c, "step", 12));
    if (c.has("vote")) return [step](double x, double) { return std::max(std::abs(x), step); };
    const double most = step * (Option(c, "bits", 8) == 4 ? 7 : 127);
    const double rounding = c.stochastic ? step : step / 2;
    return [=](double x, double) { return std::max(std::abs(x) - most, rounding); };
  }
  // Of the right sign, and between 0 and the largest.
  if (name == "sign") return [](double, double max) { return max * (1 + 0x1p-22) + 0x1p-149; };
  if (name == "mxint8" || name == "mxfp4" || name == "mxfp8") {
    // Mantissa bits, the exponent of the largest power of two, and of the smallest number.
    const bool int8 = name == "mxint8", fp4 = name == "mxfp4", e5m2 = c.has("e5m2");
    const int mantissa = int8 ? 6 : fp4 ? 1 : e5m2 ? 2 : 3;
    const int most = int8 ? 0 : fp4 ? 2 : e5m2 ? 15 : 8;
    const int least = int8 ? -6 : fp4 ? -1 : e5m2 ? -16 : -9;
    const double relative = std::ldexp(1.0, -1 - mantissa);
    return [=](double x, double max) {
      if (max == 0) return 0.0;
      const double magnitude = std::abs(x);
      const int binade = std::ilogb(max);
      const int scale = std::max(binade - most, -127);
      // Half a unit in the last place; and the top of the block's binade is cut off at the largest
      // code.
      const double half = std::max(magnitude * relative, std::ldexp(1.0, scale + least - 1));
      const double top = std::ldexp(1.0, binade);
      // Of a binade from 1 to 2, 1.75 are mxfp8's largest and 1.5 mxfp4's.
      const double beyond = magnitude / (fp4 ? 4 : 8);
      return std::max(half, int8 ? top * 0x1p-6 : magnitude >= top ? beyond : 0);
    };
  }
  const bool e5m2 = c.has("e5m2");
  const double levels = name == "int8"   ? 127
                        : name == "int4" ? 7
                        : name == "int2" ? 1
                        : e5m2           ? 57344
                                         : 448;
  // The scale is max/levels or up to two roundings more; stochastic rounding moves by less than one
  // unit.
  const auto scale = [levels](double max) { return max / levels * (1 + 0x1p-22) + 0x1p-149; };
  if (name == "fp8") {
    const double relative = (e5m2 ? 0x1p-3 : 0x1p-4) * 1.001;
    const double smallest = (e5m2 ? 0x1p-17 : 0x1p-10) * 1.001;
    return [=](double x, double max) {
      if (max == 0) return 0.0;
      return std::max(std::abs(x) * relative, scale(max) * smallest) + 0x1p-149;
    };
  }
  const double units = c.stochastic ? 1 + 0x1p-16 : 0.5 + 0x1p-16;
  return [=](double, double max) { return max == 0 ? 0 : scale(max) * units; };
}

}  // namespace tributary::compression
