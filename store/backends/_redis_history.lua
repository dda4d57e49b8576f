-- Reads the responses from one to the beginning of its thread.
--
-- KEYS: the nodes, the responses, the documents. ARGV: the response's id.
-- Returns the values of the responses, the last one first, and the value of the last response's document.

local records = {}
local id = ARGV[1]
while id ~= '' do
  local node = redis.call('HGET', KEYS[1], id)
  local value = redis.call('HGET', KEYS[2], id)
  if not (node and value) then
    break
  end
  records[#records + 1] = value
  local high, low = string.byte(node, 11, 12) -- of the first string, after the stamp and the number of strings
  if not low then
    records[#records + 1] = '' -- damaged: an empty value shows that the rest of the history is unknown
    break
  end
  id = string.sub(node, 13, 12 + high * 256 + low)
end
return {records, redis.call('HGET', KEYS[3], ARGV[1])}
