#include <fmt/core.h>

#include "commands.h"
#include "page_server.h"
#include "run_documents.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/io/file.h"
#include "tessera/io/report.h"
#include "tessera/report/page.h"

namespace tessera {
namespace {

std::string made_page(const ReportOptions& options) {
  std::vector<report::RunDocuments> runs;
  for (const std::string& path : options.runs) runs.push_back(read_run(path));
  return report::page(runs, {.title = concat("Tessera: ", join(options.runs, ", ")), .watch = options.watch});
}

}  // namespace

void run_report(const ReportOptions& options) {
  require(!options.watch || options.output.empty(), "--watch serves the page and writes no --output; leave one out");
  require(options.watch || !options.port, "--port is for --watch");
  if (options.watch) {
    made_page(options);  // what is wrong with the runs, now
    return serve_page(
        options.port.value_or(0),
        [&](int port) {
          fmt::print("http://127.0.0.1:{}/ shows {} until you press Ctrl-C\n", port, join(options.runs, ", "));
          std::fflush(stdout);
        },
        [&] { return made_page(options); });
  }
  const std::string output = options.output.empty() ? "report.html" : options.output;
  check_writable("--output", output);
  const std::string page = made_page(options);
  write_text_atomically(output, page);
  if (!options.quiet)
    fmt::print("{}: {}, {}\n", output, counted(static_cast<std::int64_t>(options.runs.size()), "run"),
               human_bytes(static_cast<std::int64_t>(page.size())));
}

}  // namespace tessera
