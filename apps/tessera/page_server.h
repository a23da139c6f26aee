// A page for this machine alone: what `tessera report --watch` serves.
#pragma once

#include <functional>
#include <string>

namespace tessera {

/// Answers every GET with a page that is made anew, at http://127.0.0.1:PORT/, until the process is asked to end.
/// Listens on the loopback interface only. `started` is told the port: `port` itself, or a free one for 0. Throws
/// UsageError if the port is taken.
void serve_page(int port, const std::function<void(int port)>& started, const std::function<std::string()>& make_page);

}  // namespace tessera
