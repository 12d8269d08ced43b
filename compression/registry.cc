// Codecs by name (configs).
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "compression/codec.h"
#include "compression/internal/block_format.h"
#include "compression/internal/eden.h"
#include "compression/internal/element_codec.h"
#include "compression/internal/int8.h"
#include "compression/internal/powersgd.h"
#include "compression/internal/runs.h"
#include "compression/internal/sparse.h"
#include "compression/internal/spec.h"
#include "compression/internal/stage.h"
#include "compression/sketch.h"

namespace tributary::compression {
namespace {

using CodecOr = absl::StatusOr<std::shared_ptr<const Codec>>;

absl::StatusOr<uint32_t> TakeBlock(SpecStage* s, uint32_t usual = kDefaultBlock) {
  return s->TakePowerOfTwo("block", usual, kInt8MinBlock, kMaxBlock);
}

absl::StatusOr<bool> TakeStochastic(SpecStage* s) {
  ASSIGN_OR_RETURN(const int word, s->TakeWord("rounding", {"stochastic", "nearest"}));
  return word == 0;
}

CodecOr ParseInt(SpecStage* s) {
  ASSIGN_OR_RETURN(const uint32_t block, TakeBlock(s));
  ASSIGN_OR_RETURN(const bool stochastic, TakeStochastic(s));
  if (s->name() == "int4") return MakeInt4(block, stochastic);
  if (s->name() == "int2") return MakeInt2(block, stochastic);
  return MakeInt8(block, stochastic ? Int8Rounding::kStochastic : Int8Rounding::kNearest);
}

CodecOr ParseSign(SpecStage* s) {
  ASSIGN_OR_RETURN(const int mode, s->TakeWord("mode", {"scaled", "vote"}));
  if (mode == 1) {
    ASSIGN_OR_RETURN(const int step, s->TakeStep(10, kMaxStepExponent, /*agreed=*/false));
    return MakeSignVote(step);
  }
  ASSIGN_OR_RETURN(const uint32_t block, TakeBlock(s, kSignDefaultBlock));
  return MakeSign(block);
}

CodecOr ParseTopK(SpecStage* s) {
  ASSIGN_OR_RETURN(const double fraction, s->TakeFraction(1));
  ASSIGN_OR_RETURN(const int values, s->TakeWord("values", {"fp32", "fp16", "int8", "ternary"}));
  TopKOptions options{.fraction = fraction, .values = static_cast<SparseValues>(values)};
  ASSIGN_OR_RETURN(options.gain, s->TakeDecimal("gain", 1, 1, 4));
  if (options.gain != 1 && options.values != SparseValues::kTernary) {
    return s->Bad(
        "gain is of values=ternary, whose one magnitude it raises; the others send "
        "values as they are");
  }
  ASSIGN_OR_RETURN(options.warmup, s->TakeNumber("warmup", 0, 0, 1'000'000));
  ASSIGN_OR_RETURN(options.from, s->TakeDecimal("from", 0.25, 0, 1));  // DGC's: 75 % sparse
  if (options.warmup > 0 && fraction >= options.from) {
    return s->Bad(absl::StrCat("warmup falls from=", options.from, " to the fraction, and ",
                               fraction, " is not less"));
  }
  if (options.warmup == 0 && options.from != 0.25) {
    return s->Bad("from says where warmup=ROUNDS begins, and there is none");
  }
  ASSIGN_OR_RETURN(const int across, s->TakeWord("across", {"tensor", "model"}));
  options.whole_model = across == 1;
  return MakeTopK(options);
}

CodecOr ParseRandK(SpecStage* s) {
  ASSIGN_OR_RETURN(const double fraction, s->TakeFraction(0.5));
  ASSIGN_OR_RETURN(const int values, s->TakeWord("values", {"fp32", "fp16"}));
  ASSIGN_OR_RETURN(const int scaled, s->TakeWord("scaled", {"yes", "no"}));
  const double stride = std::round(1 / fraction);
  if (stride > static_cast<double>(kTileElements)) {
    return s->Bad(absl::StrCat("a fraction of ", fraction, " is below one in ", kTileElements));
  }
  return MakeRandK(static_cast<uint32_t>(stride), static_cast<SparseValues>(values), scaled == 0);
}

CodecOr ParseFp8(SpecStage* s) {
  ASSIGN_OR_RETURN(const int format, s->TakeWord("format", {"e4m3", "e5m2"}));
  if (s->name() == "mxfp8") return MakeMxFp8(format == 1);
  ASSIGN_OR_RETURN(const uint32_t block, TakeBlock(s));
  return MakeFp8(block, format == 1);
}

CodecOr ParseEden(SpecStage* s) {
  ASSIGN_OR_RETURN(const uint32_t bits, s->TakeNumber("bits", 4, 1, 4));
  ASSIGN_OR_RETURN(const uint32_t block,
                   s->TakePowerOfTwo("block", kEdenDefaultBlock, kEdenMinBlock, kEdenMaxBlock));
  return MakeEden(static_cast<int>(bits), block);
}

CodecOr ParseHq(SpecStage* s) {
  ASSIGN_OR_RETURN(const int word, s->TakeWord("bits", {"8", "4"}));
  ASSIGN_OR_RETURN(const int step, s->TakeStep(12, kMaxStepExponent, /*agreed=*/true));
  ASSIGN_OR_RETURN(const bool stochastic, TakeStochastic(s));
  return MakeHq(word == 1 ? 4 : 8, step, stochastic);
}

CodecOr ParsePowerSgd(SpecStage* s) {
  ASSIGN_OR_RETURN(const uint32_t rank, s->TakeNumber("rank", 2, 1, kMaxRank));
  return MakePowerSgd(rank);
}

CodecOr ParseSketch(SpecStage* s) {
  ASSIGN_OR_RETURN(const double fraction, s->TakeFraction(0.5));
  ASSIGN_OR_RETURN(const int rows, s->TakeWord("rows", {"5", "3", "1"}));
  SketchForm form;
  form.rows = rows == 0 ? 5 : rows == 1 ? 3 : 1;
  form.columns = static_cast<uint32_t>(fraction * static_cast<double>(kTileElements) / form.rows);
  if (form.columns < kSketchLeastColumns) {
    return s->Bad(absl::StrCat("a fraction of ", fraction, " gives ", form.columns,
                               " cells a row of a tile; ", kSketchLeastColumns, " are the least"));
  }
  ASSIGN_OR_RETURN(form.recover, s->TakeFraction("recover", fraction / 10, 1));
  return MakeSketch(form);
}

using Parser = CodecOr (*)(SpecStage*);
struct Entry {
  Parser parse;
  const char* syntax;
};

const std::map<std::string, Entry>& Entries() {
  static const auto* entries = new std::map<std::string, Entry>{
      {"fp32", {[](SpecStage*) -> CodecOr { return MakeFp32(); }, "fp32"}},
      {"fp16", {[](SpecStage*) -> CodecOr { return MakeFp16(); }, "fp16"}},
      {"bf16", {[](SpecStage*) -> CodecOr { return MakeBf16(); }, "bf16"}},
      {"int8", {ParseInt, "int8(block=128, rounding=stochastic|nearest)"}},
      {"int4", {ParseInt, "int4(block=128, rounding=stochastic|nearest)"}},
      {"int2", {ParseInt, "int2(block=128, rounding=stochastic|nearest)"}},
      {"sign", {ParseSign, "sign(block=1024) or sign(mode=vote, step=2^-10)"}},
      {"topk",
       {ParseTopK,
        "topk(FRACTION, values=fp32|fp16|int8|ternary, across=tensor|model, gain=1, warmup=0, "
        "from=0.25)"}},
      {"randk", {ParseRandK, "randk(FRACTION, values=fp32|fp16, scaled=yes|no)"}},
      {"fp8", {ParseFp8, "fp8(format=e4m3|e5m2, block=128)"}},
      {"mxfp8", {ParseFp8, "mxfp8(format=e4m3|e5m2)"}},
      {"mxfp4", {[](SpecStage*) -> CodecOr { return MakeMxFp4(); }, "mxfp4"}},
      {"mxint8", {[](SpecStage*) -> CodecOr { return MakeMxInt8(); }, "mxint8"}},
      {"eden", {ParseEden, "eden(bits=1|2|3|4, block=1024)"}},
      {"hq",
       {ParseHq,
        "hq(bits=8|4, step=2^-12, rounding=stochastic|nearest), step=auto: agreed anew each "
        "round"}},
      {"powersgd", {ParsePowerSgd, "powersgd(rank=2)"}},
      {"sketch", {ParseSketch, "sketch(FRACTION, rows=5|3|1, recover=FRACTION / 10)"}}};
  return *entries;
}

// Why a second codec cannot follow a first one.
std::string WhyNotAfter(const std::string& first, const std::string& second) {
  const auto sparse = [](const std::string& name) { return name == "topk" || name == "randk"; };
  if ((first == "eden" && sparse(second)) || (sparse(first) && second == "eden")) {
    return absl::StrCat("a rotation spreads over all elements what ",
                        sparse(first) ? first : second, " wants in a few: ", first, " and ", second,
                        " undo each other");
  }
  if (sparse(first) && !sparse(second)) {
    return absl::StrCat("the values of ", first, " are coded by its own parameter, as in ", first,
                        "(0.01, values=", first == "topk" ? "int8" : "fp16", ")");
  }
  return absl::StrCat(first, " and ", second,
                      " are two codecs, which would quantise twice; choose one of them");
}

CodecOr AddZeros(SpecStage* stage, std::shared_ptr<const Codec> codec, const std::string& first,
                 bool staged) {
  if (staged) return stage->Bad("zeros comes once, before zstd or lz4");
  if (first == "topk" || first == "randk") {
    return stage->Bad(absl::StrCat(first, " sends no zeros that could be left out"));
  }
  if (first == "powersgd") return stage->Bad("powersgd's factors are of a whole tensor");
  return MakeZeros(std::move(codec));
}

CodecOr AddStage(SpecStage* stage, std::shared_ptr<const Codec> codec, const std::string& first,
                 const std::string& before) {
  if (first == "sketch" && !Entries().contains(stage->name())) {
    return stage->Bad("sketches are summed as they come: no stage after them");
  }
  if (stage->name() == "zeros") return AddZeros(stage, std::move(codec), first, !before.empty());
  if (stage->name() != "zstd" && stage->name() != "lz4") {
    if (Entries().contains(stage->name())) return stage->Bad(WhyNotAfter(first, stage->name()));
    return stage->Bad(
        absl::StrCat("\"", stage->name(), "\" is not a stage; stages are zeros, zstd and lz4"));
  }
  if (before == "zstd" || before == "lz4")
    return stage->Bad("one of zstd and lz4 is enough: compressed bytes stay as large");
  if (stage->name() == "lz4") return MakeLz4(std::move(codec));
  ASSIGN_OR_RETURN(const uint32_t level, stage->TakeNumber("level", 1, 1, 19));
  return MakeZstd(std::move(codec), static_cast<int>(level));
}

}  // namespace

std::string CodecSyntax(const std::string& name) {
  if (name == "zstd") return "CODEC | zstd(level=1)";
  if (name == "lz4") return "CODEC | lz4";
  if (name == "zeros") return "CODEC | zeros";
  const auto entry = Entries().find(name);
  return entry == Entries().end() ? "" : entry->second.syntax;
}

absl::StatusOr<std::shared_ptr<const Codec>> MakeCodec(std::string_view text) {
  // Debian builds Abseil with a string_view of its own.
  const absl::string_view spec(text.data(), text.size());
  const std::vector<absl::string_view> parts = absl::StrSplit(spec, '|');
  ASSIGN_OR_RETURN(SpecStage front, SpecStage::Parse(parts[0], spec));
  const auto entry = Entries().find(front.name());
  if (entry == Entries().end()) {
    return front.Bad(absl::StrCat("\"", front.name(), "\" is not a codec for float tensors"));
  }
  ASSIGN_OR_RETURN(std::shared_ptr<const Codec> codec, entry->second.parse(&front));
  RETURN_IF_ERROR(front.Done());
  std::string before;  // the last stage's name
  for (size_t i = 1; i < parts.size(); ++i) {
    absl::StatusOr<SpecStage> stage = SpecStage::Parse(parts[i], spec);
    if (!stage.ok()) return stage.status();
    ASSIGN_OR_RETURN(codec, AddStage(&*stage, std::move(codec), front.name(), before));
    before = stage->name();
    RETURN_IF_ERROR(stage->Done());
  }
  return codec;
}

}  // namespace tributary::compression
