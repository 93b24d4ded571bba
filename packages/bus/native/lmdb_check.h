// SPDX-License-Identifier: Apache-2.0
/*
 * Whether LMDB may touch the pages of a file. LMDB trusts them: a file that is shorter than its meta pages say, or has other
 * bytes in its pages than LMDB wrote, ends the process. Nothing here maps the file.
 *
 * Any thread. Invariant: a file without damage has all pages that its trees reach, each reached once, with every offset,
 * length and number in it inside its bounds.
 */
#pragma once

#include <optional>
#include <string>

namespace tensorferry::lmdb {

/** What is wrong with the meta pages of a file or with its length, as the end of a sentence about it. */
std::optional<std::string> damageOfHeader(int descriptor);

/** What is wrong with any page in use. Nobody may write meanwhile. */
std::optional<std::string> damageOfPages(int descriptor);

/** Whether the file was last written before this machine started. What was written then may not have reached the disk. */
bool isOfEarlierBoot(int descriptor);

}  // namespace tensorferry::lmdb
