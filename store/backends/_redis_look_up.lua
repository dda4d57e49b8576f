-- Reads the ledger for a history.
--
-- KEYS: the index of keys, the turns, the calls, the keys of turns without calls.
-- ARGV: matches, then three lists, each after its length: ids of turns, keys, keys that may be known
-- Returns the server's time in microseconds; the turns' values; the calls' values; for each key that was found its
-- position and the ids of its turns; for each key of a turn without calls its position and value; and the positions of
-- the known keys.

local position = 1
local function list()
  local all, first = {}, position + 1
  position = first + tonumber(ARGV[first])
  for at = first + 1, position do
    all[#all + 1] = ARGV[at]
  end
  return all
end

local function values_of(hash, fields)
  local found = {}
  for first = 1, #fields, 1000 do
    local part = redis.call('HMGET', hash, unpack(fields, first, math.min(first + 999, #fields)))
    for _, value in ipairs(part) do
      found[#found + 1] = value
    end
  end
  return found
end

-- The beginning of a key's entries in the index; see `prefix` in _redis_values.py.
local function start_of(key)
  return string.char(math.floor(#key / 256), #key % 256) .. key .. '\0\1'
end

local matches = tonumber(ARGV[1])
local turns, keys, may_know = list(), list(), list()
local wanted = {}
for _, id in ipairs(turns) do
  wanted[id] = true
end

local found = {}
for index, key in ipairs(keys) do
  local start, ids = start_of(key), {}
  local entries = redis.call('ZREVRANGEBYLEX', KEYS[1], '[' .. start .. ':', '[' .. start, 'LIMIT', 0, matches + 1)
  for at, entry in ipairs(entries) do
    ids[at] = string.sub(entry, #start + 18)
    if at <= matches and not wanted[ids[at]] then
      wanted[ids[at]] = true
      turns[#turns + 1] = ids[at]
    end
  end
  if #ids > 0 then
    found[#found + 1] = {index - 1, ids}
  end
end

local known = {}
for index, key in ipairs(may_know) do
  local start = start_of(key)
  if #redis.call('ZRANGEBYLEX', KEYS[1], '[' .. start, '[' .. start .. ':', 'LIMIT', 0, 1) > 0 then
    known[#known + 1] = index - 1
  end
end

local plain = {}
for index, value in ipairs(values_of(KEYS[4], keys)) do
  if value then
    plain[#plain + 1] = {index - 1, value}
  end
end

-- The string at this place in a value, and the place after it. In a damaged value the string is ''.
local function string_at(value, at)
  local high, low = string.byte(value, at, at + 1)
  local size = low and high * 256 + low or 0
  return string.sub(value, at + 2, at + 1 + size), at + 2 + size
end

local records, calls = {}, {}
for index, value in ipairs(values_of(KEYS[2], turns)) do
  if value then
    records[#records + 1] = {turns[index], value}
    local count, at = string_at(value, 11) -- after the stamp and the number of strings
    for _ = 1, math.min(tonumber(count) or 0, #value) do
      calls[#calls + 1], at = string_at(value, at)
    end
  end
end

local time = redis.call('TIME')
local now = string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2]))
return {now, records, values_of(KEYS[3], calls), found, plain, known}
