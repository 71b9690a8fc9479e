// What the user has selected on the page, as far as it lies in given elements.

/** The first and the last of these elements that the selection holds anything of, as indices; null if it holds nothing. */
export function selectedElements(elements) {
  const range = currentRange();
  if (!range) return null;
  const isSelected = (element) => range.intersectsNode(element) && clipped(range, element).toString() !== "";
  const first = elements.findIndex(isSelected);
  return first < 0 ? null : { first, last: elements.findLastIndex(isSelected) };
}

/** From which to which character of the element's text the selection reaches; null if it holds nothing of it. */
export function selectedText(element) {
  const range = currentRange();
  if (!range?.intersectsNode(element)) return null;
  const part = clipped(range, element);
  const lead = document.createRange();
  lead.selectNodeContents(element);
  lead.setEnd(part.startContainer, part.startOffset);
  const [start, length] = [lead.toString().length, part.toString().length];
  return length ? { start, stop: start + length } : null;
}

function currentRange() {
  const selection = getSelection();
  return selection.rangeCount && !selection.isCollapsed ? selection.getRangeAt(0) : null;
}

/** The part of a range that lies in an element. */
function clipped(range, element) {
  const part = range.cloneRange();
  const whole = document.createRange();
  whole.selectNodeContents(element);
  if (part.compareBoundaryPoints(Range.START_TO_START, whole) < 0) part.setStart(whole.startContainer, whole.startOffset);
  if (part.compareBoundaryPoints(Range.END_TO_END, whole) > 0) part.setEnd(whole.endContainer, whole.endOffset);
  return part;
}
