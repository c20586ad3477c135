-- Part 11: a tenant's account. KEYS[1] of its functions is the tenant's tag, such as {t:acme}: they touch no lane.

local DAY_US = 86400000000
local BOOKS_KEPT_MS = 691200000 -- 8 days: no job's deadline is longer
local ACCOUNT = {pattern = '^' .. ('(%d+) '):rep(14), format = ('%d '):rep(14)}

local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function in_ms(microseconds) return math.floor(microseconds / 1000) end

-- One command on one of the tenant's keys. A key that somebody filled with another type would make every call fail,
-- and in the middle: it goes, and the command is repeated.
local function on(tag, command, key, ...)
  local reply = redis.pcall(command, name(tag, key), ...)
  if type(reply) == 'table' and reply.err then
    if reply.err:find('WRONGTYPE', 1, true) then redis.call('DEL', name(tag, key)) end
    return redis.call(command, name(tag, key), ...)
  end
  return reply
end

-- The tenant's account: the buckets of requests and tokens; `day` and `spent`, the daily budget; `held`, the tokens
-- reserved in flight; `jobs` and `tokens`, those of them that wait; `dated`, when the keys' lifetimes were last set.
-- One string, which is read and written faster than a hash. What none of us can have written is an empty account.
local function open_account(tag, now)
  local figures = {(on(tag, 'GET', 'rl') or ''):match(ACCOUNT.pattern)}
  for at = 1, 14 do
    local value = tonumber(figures[at])
    figures[at] = value and value < 2 ^ 53 and value or 0
  end
  local day, spent = figures[9], figures[10]
  if day ~= math.floor(now / DAY_US) then day, spent = math.floor(now / DAY_US), 0 end
  return {
    requests = {level = figures[1], at = figures[2], hold = figures[3], rate = figures[4]},
    tokens = {level = figures[5], at = figures[6], hold = figures[7], rate = figures[8]},
    day = day, spent = spent, held = figures[11], waiting_jobs = figures[12], waiting_tokens = figures[13],
    dated = figures[14],
  }
end

local function close_account(tag, account)
  if account.dated ~= account.day then -- once a day is enough, and costs less than always
    account.dated = account.day
    for _, key in ipairs({'res', 'inf', 'wait', 'gone'}) do redis.call('PEXPIRE', name(tag, key), BOOKS_KEPT_MS) end
  end
  local r, t = account.requests, account.tokens
  local text = ACCOUNT.format:format(r.level, r.at, r.hold, r.rate, t.level, t.at, t.hold, t.rate, account.day,
    account.spent, account.held, account.waiting_jobs, account.waiting_tokens, account.dated)
  on(tag, 'SET', 'rl', text, 'PX', BOOKS_KEPT_MS)
end
