-- Part 10: rates. A rate is a GCRA in the form of a leaky bucket (ITU-T I.371): what was admitted fills it, a limit of
-- n a minute drains n units per microsecond, and one request or token is UNITS units. All of it is whole numbers below
-- 2^53, so nothing is rounded. A bucket holds one minute's worth. What begins on an empty bucket counts as one burst for
-- BURST_US: nothing drains before, all of it afterwards, so that a limit of 50 admits exactly 50 of a burst however
-- slowly that arrives. queueing/leaky_bucket.py says the same in Python.

local UNITS = 60000000
local BURST_US = 10000000
local FULLEST = 2 ^ 53 - 1 -- whatever a job may owe: the largest level that is written whole

local function digits(value) return ('%d'):format(value) end

local function drain(bucket, now)
  if bucket.at > now or bucket.hold > now + BURST_US then bucket.at, bucket.hold = now, now end -- a clock set back
  if now >= bucket.hold then
    bucket.level = math.max(0, bucket.level - (now - bucket.at) * bucket.rate)
    bucket.at = now
  end
end

-- From now on the bucket drains at this limit; without one there is nothing in it.
local function set_rate(bucket, limit, now)
  drain(bucket, now)
  bucket.rate = limit or 0
  if not limit then bucket.level = 0 end
end

-- Fills a bucket that has a limit; a negative amount is given back.
local function fill(bucket, amount, now)
  if bucket.rate == 0 then return end
  drain(bucket, now)
  if bucket.level == 0 and amount > 0 then bucket.at, bucket.hold = now, now + BURST_US end
  bucket.level = math.min(math.max(0, bucket.level + amount * UNITS), FULLEST)
end

-- Microseconds until a bucket, drained up to now, is down to `level`.
local function until_level(bucket, level, now)
  local over = bucket.level - level
  if over <= 0 then return 0 end
  return math.max(bucket.at + math.ceil(over / bucket.rate), bucket.hold) - now
end

-- What is left of a limit now, and the milliseconds until all of it is.
local function left(bucket, limit, now)
  if not limit then return '', '' end
  return digits(math.max(0, math.floor((limit * UNITS - bucket.level) / UNITS))),
    digits(math.ceil(until_level(bucket, 0, now) / 1000))
end
