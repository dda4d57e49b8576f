-- Reads the ledger for a history.
--
-- KEYS: the index of keys, the turns, the calls, the keys of turns without calls.
-- ARGV: matches, then three lists, each after its length:
--   ids of turns
--   keys
--   keys that may be known
-- Returns the server's time in microseconds; the turns' values; the calls' values; for each key that was found its
-- position and the ids of its turns; for each key of a turn without calls its position and value; and the positions of
-- the known keys.

local position = 0
local function take()
  position = position + 1
  return ARGV[position]
end

local matches = tonumber(take())
local wanted, turns = {}, {}
local function want(id)
  if not wanted[id] then
    wanted[id] = true
    turns[#turns + 1] = id
  end
end

local function each(all, work)
  for first = 1, #all, 1000 do
    work({unpack(all, first, math.min(first + 999, #all))}, first - 1)
  end
end

-- How the entries of a key in the index begin; `prefix` in _redis_values.py.
local function start_of(key)
  return string.char(math.floor(#key / 256), #key % 256) .. key .. '\0\1'
end

for _ = 1, tonumber(take()) do
  want(take())
end

local keys, found = {}, {}
for index = 1, tonumber(take()) do
  keys[index] = take()
  local start = start_of(keys[index])
  local entries = redis.call('ZREVRANGEBYLEX', KEYS[1], '[' .. start .. ':', '[' .. start, 'LIMIT', 0, matches + 1)
  if #entries > 0 then
    local ids = {}
    for at, entry in ipairs(entries) do
      ids[at] = string.sub(entry, #start + 18)
      if at <= matches then
        want(ids[at])
      end
    end
    found[#found + 1] = {index - 1, ids}
  end
end

local known = {}
for index = 1, tonumber(take()) do
  local start = start_of(take())
  if #redis.call('ZRANGEBYLEX', KEYS[1], '[' .. start, '[' .. start .. ':', 'LIMIT', 0, 1) > 0 then
    known[#known + 1] = index - 1
  end
end

local plain = {}
each(keys, function(part, before)
  for index, value in ipairs(redis.call('HMGET', KEYS[4], unpack(part))) do
    if value then
      plain[#plain + 1] = {before + index - 1, value}
    end
  end
end)

local function number(value, at) -- of a damaged value: 0
  local high, low = string.byte(value, at, at + 1)
  return low and high * 256 + low or 0
end

local records, calls = {}, {}
each(turns, function(part)
  for index, value in ipairs(redis.call('HMGET', KEYS[2], unpack(part))) do
    if value then
      records[#records + 1] = {part[index], value}
      local at = 11 -- after the stamp and the number of strings
      local size = number(value, at)
      local count = tonumber(string.sub(value, at + 2, at + 1 + size)) or 0
      at = at + 2 + size
      for _ = 1, math.min(count, #value) do
        size = number(value, at)
        calls[#calls + 1] = string.sub(value, at + 2, at + 1 + size)
        at = at + 2 + size
      end
    end
  end
end)

local answers = {}
each(calls, function(part)
  for index, value in ipairs(redis.call('HMGET', KEYS[3], unpack(part))) do
    answers[#answers + 1] = value
  end
end)

local time = redis.call('TIME')
return {string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2])), records, answers, found, plain, known}
