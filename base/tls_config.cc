// Files of [tls], and findings about them.
#include "base/tls_config.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/toml_checks.h"

namespace tributary {
namespace {

constexpr char kSection[] = "tls";
// Hundreds of CAs; a longer file is another one, named by mistake.
constexpr uintmax_t kMostBytes = 1 << 20;

void Complain(TomlReader& toml, const std::string& key, const std::string& path,
              const absl::string_view what) {
  toml.Complain(kSection, key, absl::StrCat(KeyText(kSection, key, Quoted(path)), " ", what));
}

// True where the key is there and its file could be read.
bool ReadFile(TomlReader& toml, const std::string& key, std::string* path, std::string* text) {
  if (!toml.Read(kSection, key, path)) return false;
  std::error_code error;
  const auto complain = [&](const absl::string_view what) {
    Complain(toml, key, *path, what);
    return false;
  };
  if (!std::filesystem::exists(*path, error)) return complain("is not there: correct the path");
  if (!std::filesystem::is_regular_file(*path, error)) {
    return complain("is no file: name one");
  }
  if (std::filesystem::file_size(*path, error) > kMostBytes)
    return complain("is larger than 1 MiB, and so none of certificates or keys: name another");
  std::ifstream file(*path, std::ios::binary);
  if (!file) {
    return complain(absl::StrCat("cannot be read (", std::strerror(errno),
                                 "): let this program's user read it"));
  }
  text->assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  return true;
}

// False, with a finding, where it is not OK.
bool Take(TomlReader& toml, const std::string& key, const std::string& path,
          const absl::Status& status) {
  if (!status.ok()) Complain(toml, key, path, status.message());
  return status.ok();
}

}  // namespace

void ReadTlsCa(TomlReader& toml, const std::string& key, std::string* pem) {
  std::string path, text;
  if (!ReadFile(toml, key, &path, &text)) return;
  if (Take(toml, key, path, CheckCa(text))) *pem = std::move(text);
}

void ReadTlsPair(TomlReader& toml, TlsSide side, std::string* cert_pem, std::string* key_pem) {
  std::string cert_path, cert, key_path, key;
  bool good = ReadFile(toml, "cert", &cert_path, &cert) &&
              Take(toml, "cert", cert_path, CheckCertificate(cert, side));
  good = ReadFile(toml, "key", &key_path, &key) && Take(toml, "key", key_path, CheckKey(key)) &&
         good && Take(toml, "key", key_path, CheckPair(cert, key));
  RequireTlsKey(toml, "cert", "key");
  RequireTlsKey(toml, "key", "cert");
  if (!good) return;
  *cert_pem = std::move(cert);
  *key_pem = std::move(key);
}

void RequireTlsKey(TomlReader& toml, const std::string& key, const std::string& needs) {
  if (!toml.Has(kSection, key)) return;
  toml.Require(toml.Has(kSection, needs), kSection, key,
               absl::StrCat("[tls] ", key, " does nothing without ", needs,
                            ": give that too, or remove it"));
}

}  // namespace tributary
