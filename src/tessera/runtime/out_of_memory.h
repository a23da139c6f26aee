// What a user is told of a GPU that has no memory left.
#pragma once

#include <c10/util/Exception.h>

#include <string>

#include "tessera/base/error.h"

namespace tessera {

/// Runs a piece of a node's work; a GPU that is out of memory becomes an error that names the node and the flags that
/// help.
template <class Work>
void naming_node(const std::string& node, const Work& work) {
  try {
    work();
  } catch (const c10::OutOfMemoryError& error) {
    const std::string text = error.what_without_backtrace();
    throw Error(concat("node '", node, "': the GPU is out of memory; use --recompute block, more ",
                       "tiles (--num-spatial-parts), stages (--split-size) or --parts, or a smaller --image-size. ",
                       text.substr(0, text.find(" See documentation"))));
  }
}

}  // namespace tessera
