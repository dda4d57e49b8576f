-- Notes a turn without calls.
--
-- KEYS: the counter of numbers, the notes, the ledger, the turns, the writes, the sessions that are due.
-- ARGV: the deadline, by the server's clock in microseconds, the life of keys in seconds, the time, when the session is
--   due, the session, the time as notes begin with it, the chain, how many writes are kept and for how many seconds,
--   the write's turns and keys as one string ('': they are unknown), the keys
-- Returns the server's time in microseconds, and the ledger's revision before and after it (0: none); the time alone if
--   that is past the deadline.

local life, created, due, session, noted, chain = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
if now > tonumber(ARGV[1]) then
  return {string.format('%.0f', now)}
end

for index = 11, #ARGV do
  local own = index == 11 and chain or ''
  local known = redis.call('HGET', KEYS[2], ARGV[index])
  if known and string.sub(known, #noted + 1) ~= own then
    own = ''
  end
  redis.call('HSET', KEYS[2], ARGV[index], noted .. own)
end
redis.call('EXPIRE', KEYS[2], life)
redis.call('ZADD', KEYS[6], 'LT', due, session)
redis.call('HSETNX', KEYS[3], 'oldest', created)

local before, after = tonumber(redis.call('HGET', KEYS[3], 'revision')) or 0, 0
if redis.call('EXISTS', KEYS[4]) == 1 then
  after = string.format('%.0f', math.max(now, tonumber(redis.call('GET', KEYS[1]) or '0') + 1))
  redis.call('SET', KEYS[1], after)
  redis.call('HSET', KEYS[3], 'revision', after)
  if ARGV[10] ~= '' then
    redis.call('ZADD', KEYS[5], after, string.format('%016.0f%016.0f', before, after) .. ARGV[10])
    redis.call('ZREMRANGEBYRANK', KEYS[5], 0, -1 - ARGV[8])
    redis.call('EXPIRE', KEYS[5], ARGV[9])
  end
elseif before ~= 0 then
  redis.call('HDEL', KEYS[3], 'revision')
end
redis.call('EXPIRE', KEYS[3], life)
return {string.format('%.0f', now), before, after}
