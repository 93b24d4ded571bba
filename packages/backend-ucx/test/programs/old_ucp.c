// SPDX-License-Identifier: Apache-2.0
/* A library that says that it is UCX 1.12. */
void ucp_get_version(unsigned* major, unsigned* minor, unsigned* release) {
  *major = 1;
  *minor = 12;
  *release = 1;
}
const char* ucp_get_version_string(void) { return "1.12.1"; }
