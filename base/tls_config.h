// [tls] of config files: the files that its keys name, read and checked before anything starts.
#pragma once

#include <string>

#include "base/tls.h"
#include "base/toml_reader.h"

namespace tributary {

// Each reads [tls] keys whose values are paths, and puts the files' texts where the pointers say.
// What is wrong with a path or a file is a finding; the text is then left empty.

// One key: certificates of CAs.
void ReadTlsCa(TomlReader& toml, const std::string& key, std::string* pem);
// `cert` and `key`: a certificate for `side` and its key; one without the other is a finding.
void ReadTlsPair(TomlReader& toml, TlsSide side, std::string* cert_pem, std::string* key_pem);

// A finding about `key`, where it is there and the key that it needs is not.
void RequireTlsKey(TomlReader& toml, const std::string& key, const std::string& needs);

}  // namespace tributary
