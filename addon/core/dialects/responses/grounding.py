"""Results of Google Search in an answer: the search as an item, and the citations in its text. Pure."""

from addon.core.framing.documents import Document, as_list, get, objects


def search_of(grounding: Document, *, with_sources: bool) -> Document | None:
    """A groundingMetadata as the `action` of a web search call; None if nothing was searched."""
    queries = [query for query in as_list(get(grounding, "webSearchQueries")) if isinstance(query, str)]
    if not queries:
        return None
    action: Document = {"type": "search", "query": queries[0], "queries": queries}
    if with_sources:
        urls = dict.fromkeys(url for url, _ in filter(None, map(_source, objects(get(grounding, "groundingChunks")))))
        action["sources"] = [{"type": "url", "url": url} for url in urls]
    return action


def citations_of(grounding: Document, text: str) -> list[Document]:
    """The citations in a text, which may begin before the text that the metadata refers to."""
    sources = [_source(chunk) for chunk in objects(get(grounding, "groundingChunks"))]
    found = []
    for support in objects(get(grounding, "groundingSupports")):
        segment = get(support, "segment")
        if not isinstance(segment, dict) or (place := _place(segment, text)) is None:
            continue
        for index in as_list(get(support, "groundingChunkIndices")):
            source = sources[index] if isinstance(index, int) and 0 <= index < len(sources) else None
            if source is not None:
                url, title = source
                place_in_text = {"start_index": place[0], "end_index": place[1]}
                found.append({"type": "url_citation", **place_in_text, "url": url, "title": title})
    return found


def _source(chunk: Document) -> tuple[str, str] | None:
    """The URL and the title of a web source."""
    web = get(chunk, "web")
    url = get(web, "uri") if isinstance(web, dict) else None
    return (url, str(get(web, "title") or "")) if isinstance(url, str) and url else None


def _place(segment: Document, text: str) -> tuple[int, int] | None:
    """The position of a segment, in characters. Gemini counts bytes, from the beginning of its own text."""
    start, end, words = get(segment, "startIndex") or 0, get(segment, "endIndex"), get(segment, "text")
    raw = text.encode("utf-8", "surrogatepass")
    if isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= len(raw):
        given = raw[start:end].decode("utf-8", "replace")
        if not isinstance(words, str) or given == words:
            first = len(raw[:start].decode("utf-8", "replace"))
            return first, first + len(given)
    if isinstance(words, str) and words and (at := text.rfind(words)) >= 0:
        return at, at + len(words)
    return None
