// The report: one HTML page that opens without a network. A pure function of the documents, so it is tested as such.
#pragma once

#include <string>
#include <vector>

#include "tessera/report/documents.h"

namespace tessera::report {

struct PageOptions {
  std::string title = "Tessera";
  bool watch = false;  ///< the page asks its server for a newer one every other second
};

/// All of the page. Several runs share their curves and stand side by side in the rest.
std::string page(const std::vector<RunDocuments>& runs, const PageOptions& options = {});

/// What stands in <style> and in <script>.
const char* style_sheet();
const char* script();

}  // namespace tessera::report
