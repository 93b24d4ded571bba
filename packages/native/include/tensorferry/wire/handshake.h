// SPDX-License-Identifier: Apache-2.0
/*
 * How the two ends of a connection prove to each other that they hold the same key, which never travels: the listener sends
 * a challenge, the dialer answers it with a keyed code, and the listener answers that with a code of its own. The listener
 * says nothing keyed to whoever has not proved the key, so that a stranger gets no material to guess a weak token from.
 *
 * Plain values; any thread. Invariants: every message has a fixed length, so a reader never takes a length from a stranger;
 * the codes cover both challenges, both endpoints, the dialer's rank and its role, so that no code can be replayed or
 * reflected. Numbers are little-endian.
 */
#pragma once

#include "sha256.h"

namespace tensorferry::wire {

/** Names an endpoint for as long as it lives. */
using EndpointId = std::array<uint8_t, 16>;

inline constexpr std::array<uint8_t, 8> protocolMagic{'T', 'F', 'W', 'I', 'R', 'E', 0, 1};

/** What the listener sends first. */
struct Challenge {
  std::array<uint8_t, 8> magic;
  Bytes32 nonce;
};

/** What the dialer answers. */
struct Hello {
  std::array<uint8_t, 8> magic;
  uint32_t rank;
  uint32_t reserved;
  /** Whom the dialer means to reach, and who it is. */
  EndpointId listener, dialer;
  Bytes32 nonce;
  Bytes32 proof;
};

enum class Verdict : uint8_t { admitted = 1, wrongProof, otherEndpoint, otherProtocol, tooMany };

/** What the listener answers last. The proof is there where the dialer was admitted. */
struct Judgement {
  Verdict verdict;
  std::array<uint8_t, 7> reserved;
  Bytes32 proof;
};

static_assert(sizeof(Challenge) == 40 && sizeof(Hello) == 112 && sizeof(Judgement) == 40);

enum class Role : uint8_t { dialer = 1, listener };

inline Bytes32 proofOf(const Bytes32& key, Role role, const Challenge& challenge, const Hello& hello) noexcept {
  constexpr size_t covered = sizeof(Hello) - sizeof(Bytes32);
  std::array<uint8_t, 1 + sizeof(Challenge) + covered> text;
  text[0] = static_cast<uint8_t>(role);
  std::memcpy(text.data() + 1, &challenge, sizeof challenge);
  std::memcpy(text.data() + 1 + sizeof challenge, &hello, covered);
  return hmacSha256(key, text.data(), text.size());
}

inline Hello makeHello(const Bytes32& key, const Challenge& challenge, uint32_t rank, const EndpointId& dialer,
                       const EndpointId& listener, const Bytes32& nonce) noexcept {
  Hello hello{protocolMagic, rank, 0, listener, dialer, nonce, {}};
  hello.proof = proofOf(key, Role::dialer, challenge, hello);
  return hello;
}

/** What the listener `own`, which sent the challenge, answers to a dialer. */
inline Judgement judgeHello(const Bytes32& key, const Challenge& challenge, const Hello& hello,
                            const EndpointId& own) noexcept {
  Judgement judgement{Verdict::admitted, {}, {}};
  if (hello.magic != protocolMagic) judgement.verdict = Verdict::otherProtocol;
  else if (hello.listener != own) judgement.verdict = Verdict::otherEndpoint;
  else if (!equalCodes(hello.proof, proofOf(key, Role::dialer, challenge, hello)))
    judgement.verdict = Verdict::wrongProof;
  else judgement.proof = proofOf(key, Role::listener, challenge, hello);
  return judgement;
}

/** True where the listener has proved that it holds the key, too. */
inline bool provesKey(const Bytes32& key, const Challenge& challenge, const Hello& hello,
                      const Judgement& judgement) noexcept {
  return judgement.verdict == Verdict::admitted &&
         equalCodes(judgement.proof, proofOf(key, Role::listener, challenge, hello));
}

}  // namespace tensorferry::wire
