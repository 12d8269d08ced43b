// The data sets of the trainer: read from Debian's packages, checked by SHA-256, kept as bytes.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tributary::client::trainer {

// What every image of a data set looks like, and how its pixels become a network's input.
struct ImageFormat {
  std::string dataset;  // its name, for messages
  uint32_t channels = 1;
  uint32_t height = 0;
  uint32_t width = 0;
  uint32_t classes = 0;      // labels are 0..classes-1
  uint32_t pixel_max = 255;  // pixels are 0..pixel_max
  // A network sees (pixel / pixel_max - mean) / deviation.
  double mean = 0;
  double deviation = 1;
  uint64_t pixels() const { return uint64_t{channels} * height * width; }
};

// Labelled images, back to back, each in row-major order.
struct Examples {
  std::vector<uint8_t> pixels;  // size() * format.pixels()
  std::vector<uint8_t> labels;
  size_t size() const { return labels.size(); }
};

struct Dataset {
  ImageFormat format;
  Examples train;
  Examples test;
};

// A file that a data set is made of, as the Debian package has it.
struct DatasetFile {
  std::string_view name;
  std::string_view sha256;  // in hex
};

// "fashion-mnist": 60,000 + 10,000 images of 28x28, 10 classes (Xiao, Rasul, Vollgraf, 2017); from
//   train-images-idx3-ubyte.gz and its three sisters, package dataset-fashion-mnist.
// "digits": 1,797 images of 8x8 with pixels 0..16, 10 classes (Alpaydin and Kaynak, 1998, as
//   scikit-learn ships them), in the file's order: the first 1,437 train, the last 360 test; from
//   digits.csv.gz, package python3-sklearn.
std::vector<std::string> DatasetNames();
// NOT_FOUND names what is known.
absl::StatusOr<ImageFormat> FormatOf(std::string_view name);
absl::StatusOr<std::vector<DatasetFile>> FilesOf(std::string_view name);
absl::StatusOr<std::string> DefaultDirectoryOf(std::string_view name);

// Reads a data set; directory "": where the Debian package puts it. NOT_FOUND: a file is missing
// (names the package to install); DATA_LOSS: a file's SHA-256 is not the pinned one, or its content
// is malformed.
absl::StatusOr<Dataset> LoadDataset(std::string_view name, const std::string& directory = "");

// The examples at these indices, in this order; each index < from.size().
Examples Gather(const Examples& from, const ImageFormat& format, std::span<const uint32_t> indices);

// All pixels as a network sees them: computed in double, rounded once to float.
std::vector<float> Normalise(const Examples& examples, const ImageFormat& format);

}  // namespace tributary::client::trainer
