"""Learning a vocabulary of pieces from counted words."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import pairwise

Pair = tuple[str, str]


def learn_pieces(words: Mapping[str, int], size: int) -> list[str]:
    """The pieces by the most frequent pairs: characters first, then what is joined, in order.

    Args:
      words: Words, and how often each occurs.
      size: How many pieces at most.
    """
    cut = {word: [word[0], *("##" + letter for letter in word[1:])] for word in words}
    letters: Counter[str] = Counter()
    for word, pieces in cut.items():
        for piece in pieces:
            letters[piece] += words[word]
    # A letter that occurs once is more likely noise than a piece of words to come.
    often = sorted((-n, piece) for piece, n in letters.items() if n > 1)
    found = [piece for _, piece in often[:size]]
    known = set(found)
    # Words with a letter that is left out become [UNK] as a whole, and teach nothing.
    cut = {word: pieces for word, pieces in cut.items() if known.issuperset(pieces)}
    counts: Counter[Pair] = Counter()
    inside: defaultdict[Pair, set[str]] = defaultdict(set)
    for word, pieces in cut.items():
        for pair in pairwise(pieces):
            counts[pair] += words[word]
            inside[pair].add(word)
    queue = [(-n, pair) for pair, n in counts.items()]
    heapq.heapify(queue)
    while queue and len(found) < size:
        negative, pair = heapq.heappop(queue)
        n = counts[pair]
        if n != -negative:  # it was counted before some of its letters went into other pieces
            if n > 1:
                heapq.heappush(queue, (-n, pair))
            continue
        if n < 2:
            break
        joined = pair[0] + pair[1].removeprefix("##")
        if joined not in known:  # two pairs may give the same piece
            known.add(joined)
            found.append(joined)
        changed: set[Pair] = set()
        for word in inside.pop(pair):
            before, cut[word] = cut[word], _joined(cut[word], pair, joined)
            for sign, pieces in ((-1, before), (1, cut[word])):
                for each in pairwise(pieces):
                    counts[each] += sign * words[word]
                    changed.add(each)
                    if sign > 0:
                        inside[each].add(word)
        del counts[pair]
        for each in changed - {pair}:
            if counts[each] > 1:
                heapq.heappush(queue, (-counts[each], each))
    return found


def _joined(pieces: list[str], pair: Pair, joined: str) -> list[str]:
    out, place = [], 0
    while place < len(pieces):
        if tuple(pieces[place : place + 2]) == pair:
            out.append(joined)
            place += 2
        else:
            out.append(pieces[place])
            place += 1
    return out
