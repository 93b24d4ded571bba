// SPDX-License-Identifier: Apache-2.0
/** What `tensorferry.descriptors` of package.json names: one file for the sources and for the published package. */
export { descriptors } from "@tensorferry/backend-ucx"
