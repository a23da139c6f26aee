// The documents of a run from the disk, for the report.
#pragma once

#include "tessera/report/documents.h"

namespace tessera {

/// `path`: the folder of a --log-dir, a --checkpoint-dir with the log in it, or a document of --json. Lines that a run
/// is still writing are left out. Throws UsageError if there is nothing to report of.
report::RunDocuments read_run(const std::string& path);

/// "data:image/jpeg;base64,...": a picture inside of a page.
std::string data_uri(const std::string& path);

}  // namespace tessera
