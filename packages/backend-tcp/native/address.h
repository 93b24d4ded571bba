// SPDX-License-Identifier: Apache-2.0
/*
 * Addresses of sockets, IPv4 and IPv6, between text and what the system takes. Plain values; any thread.
 *
 * Invariant: an address is always numeric, so nothing here ever asks a name server.
 */
#pragma once

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <optional>
#include <string>

namespace tensorferry::tcp {

class Address {
 public:
  Address() = default;

  /** Reads `10.0.0.1`, `fd00::1` or `fe80::1%eth0`; absent where it is no such text. */
  static std::optional<Address> parse(const std::string& text, uint16_t port) {
    Address address;
    if (::inet_pton(AF_INET, text.c_str(), &address.v4().sin_addr) == 1) {
      address.v4().sin_family = AF_INET;
      address.v4().sin_port = htons(port);
      return address;
    }
    address = {};
    const auto zone = text.find('%');
    if (::inet_pton(AF_INET6, text.substr(0, zone).c_str(), &address.v6().sin6_addr) != 1) return std::nullopt;
    address.v6().sin6_family = AF_INET6;
    address.v6().sin6_port = htons(port);
    if (zone != std::string::npos) address.v6().sin6_scope_id = ::if_nametoindex(text.substr(zone + 1).c_str());
    return address;
  }

  /** Where a socket is, or where its peer is. */
  static Address of(int socket, bool ofPeer) {
    Address address;
    socklen_t length = sizeof address.storage_;
    auto* to = reinterpret_cast<sockaddr*>(&address.storage_);
    if ((ofPeer ? ::getpeername(socket, to, &length) : ::getsockname(socket, to, &length)) != 0) return {};
    return address;
  }

  int family() const noexcept { return storage_.ss_family; }
  const sockaddr* raw() const noexcept { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t length() const noexcept { return family() == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6); }
  uint16_t port() const noexcept {
    return ntohs(family() == AF_INET ? reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port
                                     : reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
  }

  /** Without the port. */
  std::string host() const {
    char text[INET6_ADDRSTRLEN] = "an unknown address";
    if (family() == AF_INET)
      ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr, text, sizeof text);
    if (family() == AF_INET6)
      ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr, text, sizeof text);
    return text;
  }

  /** As in errors: `10.0.0.1:4000`, `[fd00::1]:4000`. */
  std::string text() const {
    std::string text = family() == AF_INET6 ? std::string("[").append(host()).append("]") : host();
    return text.append(":").append(std::to_string(port()));
  }

 private:
  sockaddr_in& v4() noexcept { return *reinterpret_cast<sockaddr_in*>(&storage_); }
  sockaddr_in6& v6() noexcept { return *reinterpret_cast<sockaddr_in6*>(&storage_); }
  sockaddr_storage storage_{};
};

}  // namespace tensorferry::tcp
