// What becomes of image files that cannot be read (--on-bad-image skip).
#pragma once

#include "launch.h"
#include "tessera/data/vips_images.h"

namespace tessera {

/// Decodes every file once, each on one process of the launch and on all of its cores, takes those that cannot be read
/// out of the set, and says on standard error which. All processes then have the same set, whatever part of an image a
/// rank will read. smallest_window: as of VipsImages::fault_of(). Collective.
void leave_out_bad_images(VipsImages& images, double smallest_window, const Launch& launch);

}  // namespace tessera
