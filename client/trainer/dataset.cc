// Reading Fashion-MNIST (IDX files) and digits (CSV).
#include "client/trainer/dataset.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "client/trainer/internal/gzip.h"

namespace tributary::client::trainer {
namespace {

constexpr uint32_t kFashionTrain = 60000;
constexpr uint32_t kFashionTest = 10000;
constexpr uint32_t kDigitsTrain = 1437;  // scikit-learn's usual first 80 %
constexpr uint32_t kDigitsTest = 360;
constexpr size_t kDigitsCsvLimit = 1 << 20;

struct Source {
  std::string_view name;
  std::string_view directory;
  std::string_view package;
  std::vector<DatasetFile> files;
  ImageFormat format;
  absl::StatusOr<Dataset> (*load)(const Source&, const std::string& directory);
};

// One checked and unpacked file of a source.
absl::StatusOr<std::vector<uint8_t>> LoadFile(const Source& source, const std::string& directory,
                                              size_t file, size_t unpacked_limit) {
  const std::string path = absl::StrCat(directory, "/", std::string(source.files[file].name));
  auto packed = ReadWholeFile(path);
  if (absl::IsNotFound(packed.status())) {
    const std::string package(source.package);
    return absl::NotFoundError(absl::StrCat(Text(packed.status()), "; install the Debian package ",
                                            package, " (apt-get install ", package,
                                            ") or set [data] directory"));
  }
  RETURN_IF_ERROR(packed.status());
  RETURN_IF_ERROR(CheckSha256(path, *packed, source.files[file].sha256));
  return Gunzip(path, *packed, unpacked_limit);
}

uint32_t BigEndian32(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

// The IDX format (LeCun's MNIST page): two zero bytes, 8 for unsigned bytes, the number of
// dimensions, each dimension as a big-endian 32-bit integer, then the bytes themselves.
absl::StatusOr<std::vector<uint8_t>> ParseIdx(std::string_view name, std::vector<uint8_t> bytes,
                                              const std::vector<uint32_t>& dimensions) {
  const size_t header = 4 + 4 * dimensions.size();
  size_t elements = 1;
  for (const uint32_t dimension : dimensions) elements *= dimension;
  bool good = bytes.size() == header + elements && bytes[0] == 0 && bytes[1] == 0 &&
              bytes[2] == 8 && bytes[3] == dimensions.size();
  for (size_t i = 0; good && i < dimensions.size(); ++i) {
    good = BigEndian32(bytes.data() + 4 + 4 * i) == dimensions[i];
  }
  if (!good) {
    return absl::DataLossError(absl::StrCat(std::string(name), " is no IDX file of ",
                                            absl::StrJoin(dimensions, "x"), " unsigned bytes"));
  }
  bytes.erase(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(header));
  return bytes;
}

absl::Status CheckLabels(const Examples& examples, const ImageFormat& format) {
  for (size_t i = 0; i < examples.size(); ++i) {
    if (examples.labels[i] >= format.classes) {
      return absl::DataLossError(absl::StrCat(format.dataset, ": example ", i, " has label ",
                                              examples.labels[i], ", expected 0 to ",
                                              format.classes - 1));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Examples> LoadFashionPart(const Source& source, const std::string& directory,
                                         size_t images, size_t labels, uint32_t count) {
  const ImageFormat& format = source.format;
  Examples part;
  ASSIGN_OR_RETURN(auto image_file,
                   LoadFile(source, directory, images, 16 + size_t{count} * format.pixels()));
  ASSIGN_OR_RETURN(part.pixels, ParseIdx(source.files[images].name, std::move(image_file),
                                         {count, format.height, format.width}));
  ASSIGN_OR_RETURN(auto label_file, LoadFile(source, directory, labels, 8 + size_t{count}));
  ASSIGN_OR_RETURN(part.labels,
                   ParseIdx(source.files[labels].name, std::move(label_file), {count}));
  RETURN_IF_ERROR(CheckLabels(part, format));
  return part;
}

absl::StatusOr<Dataset> LoadFashion(const Source& source, const std::string& directory) {
  Dataset dataset{.format = source.format, .train = {}, .test = {}};
  ASSIGN_OR_RETURN(dataset.train, LoadFashionPart(source, directory, 0, 1, kFashionTrain));
  ASSIGN_OR_RETURN(dataset.test, LoadFashionPart(source, directory, 2, 3, kFashionTest));
  return dataset;
}

// "p0,p1,...,p63,label", all whole numbers.
absl::Status ParseDigitsRow(absl::string_view row, size_t number, const ImageFormat& format,
                            Examples* out) {
  const std::vector<absl::string_view> cells = absl::StrSplit(row, ',');
  bool good = cells.size() == format.pixels() + 1;
  for (size_t i = 0; good && i < cells.size(); ++i) {
    uint32_t value = 0;
    const bool is_label = i + 1 == cells.size();
    good = absl::SimpleAtoi(cells[i], &value) &&
           value <= (is_label ? format.classes - 1 : format.pixel_max);
    (is_label ? out->labels : out->pixels).push_back(static_cast<uint8_t>(value));
  }
  if (good) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("digits.csv.gz: row ", number, " is not ",
                                          format.pixels(), " pixels from 0 to ", format.pixel_max,
                                          " and a label from 0 to ", format.classes - 1));
}

absl::StatusOr<Dataset> LoadDigits(const Source& source, const std::string& directory) {
  Dataset dataset{.format = source.format, .train = {}, .test = {}};
  ASSIGN_OR_RETURN(const auto csv, LoadFile(source, directory, 0, kDigitsCsvLimit));
  const absl::string_view text(reinterpret_cast<const char*>(csv.data()), csv.size());
  const std::vector<absl::string_view> rows = absl::StrSplit(text, '\n', absl::SkipEmpty());
  if (rows.size() != kDigitsTrain + kDigitsTest) {
    return absl::DataLossError(absl::StrCat("digits.csv.gz has ", rows.size(), " rows, expected ",
                                            kDigitsTrain + kDigitsTest));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    RETURN_IF_ERROR(ParseDigitsRow(rows[i], i + 1, source.format,
                                   i < kDigitsTrain ? &dataset.train : &dataset.test));
  }
  return dataset;
}

const std::vector<Source>& Sources() {
  static const auto* const sources = new std::vector<Source>{
      {.name = "fashion-mnist",
       .directory = "/usr/share/datasets/fashion-mnist",
       .package = "dataset-fashion-mnist",
       // Of the package's version 0.0~git20200523.55506a9-1.
       .files = {{"train-images-idx3-ubyte.gz",
                  "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7"},
                 {"train-labels-idx1-ubyte.gz",
                  "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056"},
                 {"t10k-images-idx3-ubyte.gz",
                  "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa"},
                 {"t10k-labels-idx1-ubyte.gz",
                  "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05"}},
       // Mean and deviation are those of the training pixels, to four digits.
       .format = {.dataset = "fashion-mnist",
                  .height = 28,
                  .width = 28,
                  .classes = 10,
                  .pixel_max = 255,
                  .mean = 0.2860,
                  .deviation = 0.3530},
       .load = LoadFashion},
      {.name = "digits",
       .directory = "/usr/lib/python3/dist-packages/sklearn/datasets/data",
       .package = "python3-sklearn",
       // Of the package's version 1.2.1+dfsg-1.
       .files = {{"digits.csv.gz",
                  "46abec6b12486ad9e51943373abcf22bbea1b5a51a1619b361570d8893f1464a"}},
       .format = {.dataset = "digits", .height = 8, .width = 8, .classes = 10, .pixel_max = 16},
       .load = LoadDigits}};
  return *sources;
}

absl::StatusOr<const Source*> FindSource(std::string_view name) {
  for (const Source& source : Sources()) {
    if (source.name == name) return &source;
  }
  return absl::NotFoundError(absl::StrCat("no data set \"", std::string(name), "\"; known are ",
                                          absl::StrJoin(DatasetNames(), ", ")));
}

}  // namespace

std::vector<std::string> DatasetNames() {
  std::vector<std::string> names;
  for (const Source& source : Sources()) names.emplace_back(source.name);
  return names;
}

absl::StatusOr<ImageFormat> FormatOf(std::string_view name) {
  ASSIGN_OR_RETURN(const Source* source, FindSource(name));
  return source->format;
}

absl::StatusOr<std::vector<DatasetFile>> FilesOf(std::string_view name) {
  ASSIGN_OR_RETURN(const Source* source, FindSource(name));
  return source->files;
}

absl::StatusOr<std::string> DefaultDirectoryOf(std::string_view name) {
  ASSIGN_OR_RETURN(const Source* source, FindSource(name));
  return std::string(source->directory);
}

absl::StatusOr<Dataset> LoadDataset(std::string_view name, const std::string& directory) {
  ASSIGN_OR_RETURN(const Source* source, FindSource(name));
  return source->load(*source, directory.empty() ? std::string(source->directory) : directory);
}

Examples Gather(const Examples& from, const ImageFormat& format,
                std::span<const uint32_t> indices) {
  const size_t pixels = format.pixels();
  Examples to;
  to.pixels.resize(indices.size() * pixels);
  to.labels.resize(indices.size());
  for (size_t i = 0; i < indices.size(); ++i) {
    std::memcpy(to.pixels.data() + i * pixels, from.pixels.data() + indices[i] * pixels, pixels);
    to.labels[i] = from.labels[indices[i]];
  }
  return to;
}

std::vector<float> Normalise(const Examples& examples, const ImageFormat& format) {
  std::array<float, 256> table = {};
  for (size_t pixel = 0; pixel < table.size(); ++pixel) {
    table[pixel] = static_cast<float>(
        (static_cast<double>(pixel) / format.pixel_max - format.mean) / format.deviation);
  }
  std::vector<float> values(examples.pixels.size());
  std::transform(examples.pixels.begin(), examples.pixels.end(), values.begin(),
                 [&table](uint8_t pixel) { return table[pixel]; });
  return values;
}

}  // namespace tributary::client::trainer
