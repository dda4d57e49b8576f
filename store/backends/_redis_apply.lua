-- Applies the writes of a transaction, if everything that they were computed from is still the same.
--
-- KEYS[1]: the counter of numbers. All others are named by their position.
-- ARGV: the deadline, by the server's clock in microseconds, the life of keys in seconds, 1 if the server's replication
--   id is wanted, then four lists, each after its length:
--   conditions: kind, key, field, expected ("" means absent)
--   operations: name, key, number of arguments, arguments
--   events: stream, type, data, time; each of one transaction's events belongs to the same session
--   notices: stream, session, time, what waiters need to know
-- Returns the server's time in microseconds, 1, the replication id, which is another as soon as another server is the
-- primary, the transaction's number, and the ledger's revision before and after it (0: none); or the time, 0, the
-- replication id, and position and current value of each condition that does not hold; or, past the deadline, the time
-- alone.

local position = 0
local function take()
  position = position + 1
  return ARGV[position]
end
local function count()
  return tonumber(take())
end
local function key()
  return KEYS[count()]
end
local function digits(number)
  return string.format('%.0f', number)
end
local function place_in(zset, member)
  local place = redis.call('ZSCORE', zset, member)
  return place and string.format('%016.0f', tonumber(place))
end

local deadline, life, named = tonumber(take()), take(), take() == '1'
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local function primary()
  return named and string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') or ''
end

local conflicts = {digits(now), 0, ''}
for index = 1, count() do
  local kind, at, field, expected = take(), key(), take(), take()
  local value
  if kind == 'GET' then
    value = redis.call('GET', at)
  elseif kind == 'ZSCORE' then
    value = redis.call('ZSCORE', at, field)
    if value and tonumber(value) == tonumber(expected) then
      value = expected
    end
  else
    value = redis.call('HGET', at, field)
  end
  local found = value or ''
  if kind == 'STAMP' and expected ~= '' then
    found = string.sub(found, 1, #expected)
  end
  if found ~= expected then
    conflicts[#conflicts + 1] = index
    conflicts[#conflicts + 1] = value
  end
end
if #conflicts > 3 then
  conflicts[3] = primary()
  return conflicts
end
if now > deadline then -- after the conflicts, which tell that an earlier try of the same write was applied
  return {digits(now)}
end

local number = math.max(now, tonumber(redis.call('GET', KEYS[1]) or '0') + 1)
local last = number
local before, after = 0, 0
for _ = 1, count() do
  local name, at = take(), key()
  local values = {}
  for index = 1, count() do
    values[index] = take()
  end
  if name == 'PLACE' then -- offset, member: the member comes after all earlier ones
    local place = number + tonumber(values[1])
    last = math.max(last, place)
    redis.call('ZADD', at, 'NX', digits(place), values[2])
  elseif name == 'DATE' then -- zset with the member's place, member, date, by how much they may differ
    local place = redis.call('ZSCORE', KEYS[tonumber(values[1])], values[2])
    if math.abs(tonumber(place) / 1e6 - tonumber(values[3])) > tonumber(values[4]) then
      redis.call('ZADD', at, values[3], values[2])
    end
  elseif name == 'INDEX' or name == 'UNINDEX' then -- zset with the member's place, member, prefixes
    local place = place_in(KEYS[tonumber(values[1])], values[2])
    for index = 3, place and #values or 0 do
      local entry = values[index] .. place .. values[2]
      if name == 'INDEX' then
        redis.call('ZADD', at, 0, entry)
      else
        redis.call('ZREM', at, entry)
      end
    end
  elseif name == 'NOTE' then -- key, time, chain: no chain if the key has been noted with another one
    local known = redis.call('HGET', at, values[1])
    local chain = values[3]
    if known and string.sub(known, #values[2] + 1) ~= chain then
      chain = ''
    end
    redis.call('HSET', at, values[1], values[2] .. chain)
  elseif name == 'REVISE' then -- the zset of turns; the zset of writes, how many are kept and for how many seconds; and
    -- the write's turns and keys, '' if they are unknown. A ledger without turns has no revision.
    before = tonumber(redis.call('HGET', at, 'revision')) or 0
    if redis.call('EXISTS', KEYS[tonumber(values[1])]) == 1 then
      after = digits(number)
      redis.call('HSET', at, 'revision', after)
      if values[5] ~= '' then
        local writes = KEYS[tonumber(values[2])]
        redis.call('ZADD', writes, after, string.format('%016.0f%016.0f', before, after) .. values[5])
        redis.call('ZREMRANGEBYRANK', writes, 0, -1 - values[3])
        redis.call('EXPIRE', writes, values[4])
      end
    else
      redis.call('HDEL', at, 'revision')
    end
  elseif name == 'EXPIRE' then
    redis.call('EXPIRE', at, life)
  else
    redis.call(name, at, unpack(values))
  end
end

-- Keeps as many entries as allowed, and notes the last one that was dropped.
local function trim(stream, most, notes)
  local surplus = redis.call('XLEN', stream) - most
  if surplus > 0 then
    local dropped = redis.call('XRANGE', stream, '-', '+', 'COUNT', surplus)
    redis.call('XTRIM', stream, 'MAXLEN', most)
    redis.call('HSET', notes, 'lost', string.match(dropped[#dropped][1], '%d+'))
  end
end

local events = count()
for index = 1, events do
  local stream, notes, most, kind, data, created = key(), key(), count(), take(), take(), take()
  redis.call('XADD', stream, digits(number + index - 1), 't', kind, 'd', data, 'c', created)
  redis.call('EXPIRE', stream, life)
  if index == events then
    trim(stream, most, notes)
  end
end
last = math.max(last, number + events - 1)
for _ = 1, count() do
  local stream, notes, most, session, created, wakes = key(), key(), count(), take(), take(), take()
  local id = digits(number + math.max(events - 1, 0))
  if events > 0 then
    redis.call('HSET', notes, 'event', id)
  end
  redis.call('XADD', stream, id, 's', session, 'n', events, 'c', created, 'w', wakes)
  trim(stream, most, notes)
end
redis.call('SET', KEYS[1], digits(last))
return {digits(now), 1, primary(), digits(number), before, after}
