"""TensorRT-LLM's V1 rules once more, an object for each block, for requests that run one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field

Key = tuple[int, ...]


@dataclass(eq=False)
class Block:
    """A block, or with `key` None one that never held tokens. The root of the trie is one too."""

    on_host: bool = False
    key: Key = ()
    refs: int = 0
    parent: Block | None = None
    # The newest first.
    children: list[Block] = field(default_factory=list)

    def child(self, key: Key) -> Block | None:
        return next((child for child in self.children if child.key == key), None)

    def detach(self) -> None:
        """Out of the trie, with all that is below."""
        if self.parent is not None:
            self.parent.children.remove(self)
            self.parent = None
        for child in list(self.children):
            child.detach()


def shared(a: Key, b: Key) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class NaiveTrtllm:
    """`n` blocks of `size` tokens on the device, `m` on the host."""

    def __init__(self, n: int, size: int, m: int = 0, *, partial: bool = True, copy: bool = True) -> None:
        self.n, self.size, self.partial, self.copy = n, size, partial, copy
        self.root = Block()
        self.device = [Block() for _ in range(n)]
        self.host = [Block(on_host=True) for _ in range(m)]

    def serve(self, prompt: list[int], output: list[int]) -> int | None:
        """The cached tokens, None where the request is refused."""
        size, p, n = self.size, len(prompt), len(output)
        if p + n > self.n * size:
            return None
        keys = self.pieces(prompt[:-1])
        if p % size == 1 or size == 1:
            keys.append(())
        mine: list[Block] = []
        node: Block | None = self.root
        cached = 0
        for key in keys:
            block, n_matched = self.find(node, key) if node is not None and key else (None, 0)
            cached += n_matched
            if block is not None and n_matched == size and block.key == key:
                self.claim(block)
                node = block
            elif block is not None and (block.refs or block.children):
                node, block = None, self.fresh()
                block.key = key
            elif block is not None:
                block.detach()
                self.claim(block)
                node, block.key = None, key
            else:
                node, block = None, self.fresh()
                block.key = key
            mine.append(block)
        self.store(mine, [key for key in self.pieces(prompt[:-1]) if len(key) == size])
        for length in range(p + 1, p + n):
            if (length - 1) % size == 0:
                mine.append(self.fresh())
        self.store(mine, self.pieces((prompt + output)[:-1]))
        for block in reversed(mine):
            block.refs -= 1
            self.device.append(block)
        return cached

    def pieces(self, tokens: list[int]) -> list[Key]:
        return [tuple(tokens[i : i + self.size]) for i in range(0, len(tokens), self.size)]

    def find(self, node: Block, key: Key) -> tuple[Block | None, int]:
        """The block below `node` to use for `key`, and how many tokens it has of it."""
        exact = node.child(key)
        if exact is not None and (len(key) == self.size or self.copy or not (exact.refs or exact.children)):
            return exact, len(key)
        if self.partial:
            for block in sorted(node.children, key=lambda child: -shared(child.key, key)):
                if shared(block.key, key) and (self.copy or not (block.refs or block.children)):
                    return block, shared(block.key, key)
        return None, 0

    def claim(self, block: Block) -> None:
        if block.on_host:
            self.host.remove(block)
            block.refs += 1
            other = self.fresh()
            other.refs = 0
            block.on_host, other.on_host = False, True
            self.host.append(other)
        else:
            self.device.remove(block)
            block.refs += 1

    def fresh(self) -> Block:
        block = self.device.pop(0)
        if block.key and self.host:
            other = self.host.pop(0)
            block.on_host, other.on_host = True, False
            self.host.append(block)
            block = other
        block.detach()
        block.refs = 1
        return block

    def store(self, mine: list[Block], keys: list[Key]) -> None:
        node, there = self.root, True
        for block, key in zip(mine, keys, strict=False):
            child = node.child(key) if there else None
            if child is None:
                there = False
                block.key, block.parent = key, node
                node.children.insert(0, block)
                node = block
            else:
                node = child
