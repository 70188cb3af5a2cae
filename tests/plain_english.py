"""Count the marks of unclear English in docstrings, comments and Markdown, per 1,000 words.

Code, code spans, URLs and questions are left out. A mark is a sentence to rewrite, not a word to replace. Run
`python -m tests.plain_english --list rmqd` to see the sentences.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

START = r"(?:\A|(?<=\A# )|(?<=\n\n)|(?<=\n- )|(?<=[.;:|] ))"  # the start of a sentence or a comment
PATTERNS = {  # a space also matches a line break
    '"what" clause in place of a noun': (
        START + r"What (?!if\b|about\b|happens\b|you\b)\w",
        r"(?<!is )(?<!match )(?<!matching )(?<!matter )(?<!clear )(?<!know )(?<!regardless of )\bwhat (?:is|was|are"
        r"|were|has|had|it|they|we|an?|the|its|comes|came|becomes|became|stands|lies|waits|follows|remains|fails|failed"
        r"|goes|seems|nobody|others|somebody|handlers|brokers|messages|operators|X \w+s)\b",
    ),
    '"where" for "if" or "when"': (
        START + r"Where (?!to\b|can\b|do\b)",
        r"\b(?:None|False|True|\w+Error|empty|0|the same) where\b",
        r"(?<!from )(?<!know )(?<!is )(?<!case )\bwhere (?:there|no|none|nothing|one|both|that|this|needed|somebody)\b",
        r"\bwhere (?:it|they|X|the \w+|an? \w+) (?:cannot|can't|could not|(?:is|are|does|do) not|is none|(?:is|are) set"
        r"|is given|is one|ha[sd] none)\b",
    ),
    "pronoun for a noun": (r"\b(?:(?<!the )(?<!no )one that|none that|nothing of|those (?:that|of|with|before))\b",),
    "things that tell or hear": (r"(?<!can )(?<!cannot )\b(?:tells?|told|hears?|heard)\b(?! (?:you|us|me)\b)",),
    "of which, by whom, for who": (r"\b(?:of|for|by|about|after|without|against|to|from|with) (?:which|whom|who)\b",),
    "of its own, by itself": (r"\b(?:of (?:its|their|his|our) own|(?:by|for|in) (?:itself|themselves))\b",),
    "nobody, somebody, whoever": (r"\b(?:nobody|somebody|everybody|whoever|whomever)\b",),
    '"have X done"': (
        START + r"Have (?!a look|you|fun)\w",
        r"\b(?:has|have|had|having) (?:it|them|its \w+|each \w+) (?!open\b)\w+(?:ed|en|one|un)\b",
    ),
    "anew, beside, in vain, goes on ...": (
        r"\b(?:anew|beside|in vain|in peace|let(?:s|ting)? go|comes? again|all the same|openly|stands? still)\b",
        r"\b(?:becom(?:e|es|ing) of|became of|go(?:es)? on|went on|(?:is|are|was|were) away)\b",
    ),
    '", as it" for "because"': (r", as (?:it|they|there|nothing|no|nobody|these|those|both)\b(?! were\b)",),
    '"is no X", "is none"': (r"(?<![Tt]here )\b(?:is|are|was|were) (?:none\b|no (?!longer|more|less|better|need)\w)",),
    '"is to be", "that are to"': (r"\b(?:is|are|was|were) to be \w|\b(?:that|which|it|they) (?:is|are) to [a-z]",),
    "comment that starts with of, that, by": (r"\A# (?:of|that|whose|whom|by (?!default)|to whom)\b",),
}
MARKS = {name: re.compile("|".join(patterns).replace(" ", r"\s")) for name, patterns in PATTERNS.items()}
WORD = re.compile(r"[A-Za-z][\w'\u2019-]*")
SENTENCE_END = re.compile(r"[.!?][\"')*_]*(?=\s|\Z)|\n\n+|\n(?=[-*] |\d+\. |#|:\w)|\||\Z")
DIRECTIVE = re.compile(r"# ?(?:type:|noqa|pragma|pylint|fmt:|mypy|ruff|isort|!/|-\*-)")
CODE = re.compile(r"^ *(```|~~~).*?^ *\1|^ *(?:>>>|\.\.\.) .*?$|<!--.*?-->|(`+)[^`]+?\2", re.M | re.S)
URL = re.compile(r"(?<=\])\([^)\s]*\)|\bhttps?://\S+|</?\w[^>\n]*>")

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Passage = tuple[int, str]  # the number of the first line, and the text


def prose(text: str) -> str:
    """Return `text` with an X for each piece of code, and without URLs and indentation. The line breaks stay."""
    text = CODE.sub(lambda code: "X" + "\n" * code[0].count("\n"), text)
    return re.sub(r"[ \t]*\n[ \t]*", "\n", re.sub(r"[ \t]+", " ", URL.sub("", text)))


def docstrings(source: str) -> Iterator[Passage]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Documented) and (docstring := ast.get_docstring(node, clean=False)):
            yield node.body[0].lineno, docstring


def comments(source: str) -> Iterator[Passage]:
    """Yield each comment. Comments that fill consecutive lines are one passage."""
    found: list[Passage] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not DIRECTIVE.match(token.string):
            line, text = token.start[0], token.string.lstrip("#: ")
            if token.line.lstrip().startswith("#") and found and line == found[-1][0] + found[-1][1].count("\n") + 1:
                found[-1] = found[-1][0], f"{found[-1][1]}\n{text}"
            else:
                found.append((line, f"# {text}"))
    yield from found


def passages(path: Path) -> Iterator[Passage]:
    text = path.read_text(encoding="utf-8", errors="replace")
    found = [(1, text)] if path.suffix == ".md" else [*docstrings(text), *comments(text)]
    return ((line, prose(passage)) for line, passage in found)


def sentence(text: str, position: int) -> str:
    """Return the sentence at `position`, on one line."""
    ends = [match.end() for match in SENTENCE_END.finditer(text)]
    start = max((end for end in ends if end <= position), default=0)
    return " ".join(text[start : min(end for end in ends if end > position)].strip("|").split())


def marked(paths: Iterable[Path]) -> tuple[dict[str, list[str]], int]:
    """Return the sentences with each mark in the files and folders, with their places, and the number of words."""
    found: dict[str, list[str]] = {name: [] for name in MARKS}
    words = 0
    files = (file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.*"))))
    for file in (file for file in files if file.suffix in (".py", ".md")):
        for line, text in passages(file):
            words += len(WORD.findall(text))
            for name, mark in MARKS.items():
                for match in mark.finditer(text):
                    if not (around := sentence(text, match.start())).endswith("?"):
                        line_of_mark = line + text.count("\n", 0, match.start())
                        found[name].append(f"{file}:{line_of_mark}: {around}  [{match[0]!r}]")
    return found, words


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a .py or .md file, or a folder of them")
    parser.add_argument("--list", action="store_true", help="print each sentence that has a mark, with file and line")
    arguments = parser.parse_args()
    found, words = marked(arguments.paths)
    lines = [place for places in found.values() for place in places] if arguments.list else []
    lines.append(f"{'mark':40} {'count':>6} {'per 1,000 words':>16}")
    counts = {name: len(places) for name, places in found.items()}
    for name, count in [*counts.items(), (f"all, in {words:,} words", sum(counts.values()))]:
        lines.append(f"{name:40} {count:6} {1000 * count / max(words, 1):16.2f}")
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
