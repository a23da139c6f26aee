#pragma once

#include "tessera/models/registry.h"

namespace tessera {

/// U-Net (Ronneberger et al., 2015) with batch norm and padded convolutions: a class for every pixel.
///
///     image -- down1 ---------------------------------- up1 -- head -- loss       num_filters channels
///                \                                      /
///                down2 -------------------------- up2                               twice as many
///                   \                            /
///                    ...                      ...
///                       \                    /
///                        down`num_layers` -- up`num_layers`
///                                 \            /
///                                     bottom                            2^num_layers times as many
///
/// On the way down each level has half the rows and columns of the one above, rounded up; on the way up each has as
/// many as its counterpart, and both are joined. So images may have any size.
Graph unet(const ModelOptions& options);

}  // namespace tessera
