-- Applies the writes of a transaction, if the values from which they were computed have not changed.
--
-- KEYS[1]: the counter of numbers. The other keys are referred to by their positions.
-- ARGV: the deadline, by the server's clock in microseconds, 1 if the server's replication id is wanted, then two lists,
--   each after its length, of rows, each after its length:
--   conditions: kind, key, field, expected ("" means absent)
--   operations: name, key, arguments; a command of the server or one of `special` below
-- Returns the server's time in microseconds, 1, the replication id, which changes with the primary, the number of the
-- notice, and the ledger's revision before and after (0: none); or the time, 0, the replication id, and position and
-- current value of each condition that does not hold; or, past the deadline, only the time.

local position = 3
-- Calls a function with the number and the values of each row of the next list.
local function each_row(work)
  local count = tonumber(ARGV[position])
  for index = 1, count do
    local first = position + 2
    position = position + 1 + ARGV[first - 1]
    work(index, unpack(ARGV, first, position))
  end
  position = position + 1
end
local function digits(number)
  return string.format('%.0f', number)
end
local function key(at)
  return KEYS[tonumber(at)]
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local function primary()
  return ARGV[2] == '1' and string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') or ''
end

local conflicts = {digits(now), 0, ''}
each_row(function(index, kind, at, field, expected)
  local value
  if kind == 'GET' then
    value = redis.call('GET', key(at))
  elseif kind == 'ZSCORE' then
    value = redis.call('ZSCORE', key(at), field)
    if value and tonumber(value) == tonumber(expected) then
      value = expected
    end
  else
    value = redis.call('HGET', key(at), field)
  end
  local found = value or ''
  if kind == 'STAMP' and expected ~= '' then
    found = string.sub(found, 1, #expected)
  end
  if found ~= expected then
    conflicts[#conflicts + 1] = index
    conflicts[#conflicts + 1] = value
  end
end)
if #conflicts > 3 then
  conflicts[3] = primary()
  return conflicts
end
if now > tonumber(ARGV[1]) then -- after the conflicts, which show whether an earlier try was applied
  return {digits(now)}
end

local number = math.max(now, tonumber(redis.call('GET', KEYS[1]) or '0') + 1)
local last = number -- the highest used number
local events, before, after = 0, 0, 0
local notice = number

local longest, notes = {}, {} -- by stream: its most entries, and the key that notes the last dropped one
local function add(stream, id, most, hash, ...)
  redis.call('XADD', stream, digits(id), ...)
  longest[stream], notes[stream] = most, hash
end

local special = {}
function special.EVENT(stream, most, ledger, ...)
  notice = number + events
  events = events + 1
  add(stream, notice, most, key(ledger), ...)
end
function special.NOTICE(stream, most, meta, ...)
  if events > 0 then
    redis.call('HSET', key(meta), 'event', digits(notice))
  end
  add(stream, notice, most, key(meta), 'n', events, ...)
end
function special.PLACE(zset, offset, member) -- after all earlier members
  last = math.max(last, number + offset)
  redis.call('ZADD', zset, 'NX', digits(number + offset), member)
end
function special.DATE(zset, places, member, date, near) -- near: the most that a date may differ from the member's place
  if math.abs(redis.call('ZSCORE', key(places), member) / 1e6 - date) > tonumber(near) then
    redis.call('ZADD', zset, date, member)
  end
end
function special.INDEX(zset, command, places, member, ...) -- adds or removes an entry for each prefix
  local place = redis.call('ZSCORE', key(places), member)
  for _, start in ipairs(place and {...} or {}) do
    local entry = start .. string.format('%016.0f', place) .. member
    if command == 'ZADD' then
      redis.call('ZADD', zset, 0, entry)
    else
      redis.call('ZREM', zset, entry)
    end
  end
end
function special.NOTE(hash, field, time, chain) -- no chain if the key was noted with another one
  local known = redis.call('HGET', hash, field)
  if known and string.sub(known, #time + 1) ~= chain then
    chain = ''
  end
  redis.call('HSET', hash, field, time .. chain)
end
function special.REVISE(ledger, turns, writes, most, seconds, write) -- '' if the write's turns and keys are unknown
  before = tonumber(redis.call('HGET', ledger, 'revision')) or 0
  if redis.call('EXISTS', key(turns)) == 0 then -- without turns, a ledger has no revision
    redis.call('HDEL', ledger, 'revision')
    return
  end
  after = digits(number)
  redis.call('HSET', ledger, 'revision', after)
  if write ~= '' then
    redis.call('ZADD', key(writes), after, string.format('%016.0f%016.0f', before, after) .. write)
    redis.call('ZREMRANGEBYRANK', key(writes), 0, -1 - most)
    redis.call('EXPIRE', key(writes), seconds)
  end
end

each_row(function(_, name, at, ...)
  if special[name] then
    special[name](key(at), ...)
  else
    redis.call(name, key(at), ...)
  end
end)
for stream, most in pairs(longest) do
  local surplus = redis.call('XLEN', stream) - most
  if surplus > 0 then
    local dropped = redis.call('XRANGE', stream, '-', '+', 'COUNT', surplus)
    redis.call('XTRIM', stream, 'MAXLEN', most)
    redis.call('HSET', notes[stream], 'lost', string.match(dropped[#dropped][1], '%d+'))
  end
end
redis.call('SET', KEYS[1], digits(math.max(last, notice)))
return {digits(now), 1, primary(), digits(notice), before, after}
